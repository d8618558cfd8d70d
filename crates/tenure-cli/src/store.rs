//! Which store a command line means.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use tenure::{Locks, Options};

use crate::cli::Store;
use crate::exit::{Failure, OWN, STORE, USAGE, of_error};
use crate::output::chain;

/// The store that was named, or the one in the user's state directory. No request is sent yet.
pub(crate) fn open(args: &Store, options: Options) -> Result<Locks, Failure> {
    let locks = Locks::open(&url(args)?).map_err(|error| {
        // No request was sent: this process could not start the thread of its locks.
        let code = if error.is_unreachable() { OWN } else { of_error(&error) };
        Failure { code, message: chain(&error) }
    })?;
    Ok(locks.with(|_| options.prefix(&args.prefix))?)
}

/// The same, to look at what is there: a directory that was named must exist.
pub(crate) fn open_existing(args: &Store) -> Result<Locks, Failure> {
    open_existing_with(args, Options::new())
}

pub(crate) fn open_existing_with(args: &Store, options: Options) -> Result<Locks, Failure> {
    if let Some(path) = args.url.as_deref().and_then(|url| url.strip_prefix("file:")) {
        let directory = Path::new(path.strip_prefix("//").unwrap_or(path));
        // Nothing to see, and no rights to see it, are different; the store tells the latter.
        if directory.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let shown = directory.display();
            let message = format!("the store's directory {shown} does not exist; `tenure run` creates it");
            return Err(Failure { code: STORE, message });
        }
    }
    open(args, options)
}

/// Its URL.
pub(crate) fn url(args: &Store) -> Result<String, Failure> {
    match args.url.as_deref() {
        Some("") => {
            let message = "the store is empty: write --store file:DIR or --store redis://HOST, or leave \
                           out --store and unset TENURE_STORE for the default"
                .into();
            Err(Failure { code: USAGE, message })
        }
        Some(url) if url.starts_with("memory:") => {
            let message =
                "a memory: store is not shared between processes; use --store file:DIR or a server".into();
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
