//! Which store a command line means.

use std::ffi::OsString;
use std::path::PathBuf;

use tenure::{Locks, Options};

use crate::cli::Store;
use crate::exit::{Failure, OWN, USAGE, of_error};
use crate::output::chain;

/// The store that was named, or the one in the user's state directory. Nobody is asked yet.
pub(crate) fn open(args: &Store, options: Options) -> Result<Locks, Failure> {
    let locks = Locks::open(&url(args)?).map_err(|error| {
        // Nobody was asked: it is this process that has no room for the thread of its locks.
        let code = if error.is_unreachable() { OWN } else { of_error(&error) };
        Failure { code, message: chain(&error) }
    })?;
    Ok(locks.with(|_| options.prefix(&args.prefix))?)
}

/// Its URL.
pub(crate) fn url(args: &Store) -> Result<String, Failure> {
    match args.url.as_deref().filter(|url| !url.is_empty()) {
        Some(url) if url.starts_with("memory:") => {
            let message = "processes do not share a memory: store; name another with --store".into();
            Err(Failure { code: USAGE, message })
        }
        Some(url) => Ok(url.to_owned()),
        None => default(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")),
    }
}

/// The store in the user's state directory, as the XDG base directory specification finds it.
fn default(state: Option<OsString>, home: Option<OsString>) -> Result<String, Failure> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let directory = state
        .and_then(absolute)
        .or_else(|| Some(home.and_then(absolute)?.join(".local/state")))
        .map(|state| state.join("tenure"));
    match directory.as_deref().map(|path| path.to_str()) {
        Some(Some(path)) => Ok(format!("file:{path}")),
        Some(None) => Err(refuse("the path of the user's state directory is not UTF-8")),
        None => Err(refuse("neither XDG_STATE_HOME nor HOME is an absolute path")),
    }
}

fn refuse(why: &str) -> Failure {
    Failure {
        code: USAGE,
        message: format!(
            "no default store, because {why}: name one with --store, as in --store file:/var/lib/tenure"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(state: Option<&str>, home: Option<&str>) -> Option<String> {
        default(state.map(Into::into), home.map(Into::into)).ok()
    }

    #[test]
    fn the_default_is_in_the_users_state_directory() {
        let home = Some("/home/ada");
        assert_eq!(found(Some("/state"), home).as_deref(), Some("file:/state/tenure"));
        for state in [None, Some(""), Some("relative")] {
            assert_eq!(found(state, home).as_deref(), Some("file:/home/ada/.local/state/tenure"));
        }
    }

    #[test]
    fn without_a_home_a_store_must_be_named() {
        for home in [None, Some(""), Some("relative")] {
            let failure = default(None, home.map(Into::into)).expect_err("no default");
            assert!(failure.code == USAGE && failure.message.contains("--store"), "{failure:?}");
        }
    }
}
