//! Which store a command line means.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Locks, Options};

use crate::cli::Store;
use crate::duration::duration;
use crate::exit::{Failure, OWN, STORE, USAGE, of_error};
use crate::output::chain;

/// What the flags say of the terms on which the store grants: short for parts of its URL.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) acks: Option<u32>,
    pub(crate) restart_grace: Option<Duration>,
}

/// The store that was named, or the one in the user's state directory. No request is sent yet.
pub(crate) fn open(
    args: &Store,
    terms: Terms,
    change: impl FnOnce(Options) -> Options,
) -> Result<Locks, Failure> {
    let locks = Locks::open(&url_with(args, terms)?).map_err(|error| {
        // No request was sent: this process could not start the thread of its locks.
        let code = if error.is_unreachable() { OWN } else { of_error(&error) };
        Failure { code, message: chain(&error) }
    })?;
    Ok(locks.with(|options| change(options).prefix(&args.prefix))?)
}

/// The same, to look at what is there: a directory that was named must exist.
pub(crate) fn open_existing(args: &Store) -> Result<Locks, Failure> {
    open_existing_with(args, Terms::default(), |options| options)
}

pub(crate) fn open_existing_with(
    args: &Store,
    terms: Terms,
    change: impl FnOnce(Options) -> Options,
) -> Result<Locks, Failure> {
    if let Some(path) = args.url.as_deref().and_then(|url| url.strip_prefix("file:")) {
        let directory = Path::new(path.strip_prefix("//").unwrap_or(path));
        // Nothing to see, and no rights to see it, are different; the store tells the latter.
        if directory.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Err(missing(directory));
        }
    }
    open(args, terms, change)
}

/// There is no such directory.
pub(crate) fn missing(directory: &Path) -> Failure {
    let shown = directory.display();
    let message = format!("the store's directory {shown} does not exist; `tenure run` creates it");
    Failure { code: STORE, message }
}

/// Its URL, with what the flags say of it.
pub(crate) fn url_with(args: &Store, terms: Terms) -> Result<String, Failure> {
    terms.in_url(url(args)?)
}

impl Terms {
    /// The URL with these parts. A flag that differs from the URL is an error: all clients of a
    /// lock have to agree.
    fn in_url(self, url: String) -> Result<String, Failure> {
        let url = match self.acks {
            None => url,
            Some(acks) => with_part(url, "acks", &acks.to_string(), |told| told.parse() == Ok(acks))?,
        };
        match self.restart_grace {
            None => Ok(url),
            Some(grace) => {
                let whole = grace.subsec_millis() == 0;
                let text =
                    if whole { format!("{}s", grace.as_secs()) } else { format!("{}ms", grace.as_millis()) };
                with_part(url, "restart-grace", &text, |told| duration(told) == Ok(grace))
            }
        }
    }
}

/// The URL with this part in its query, where it is not there yet.
fn with_part(
    url: String,
    key: &str,
    value: &str,
    is_same: impl FnOnce(&str) -> bool,
) -> Result<String, Failure> {
    let usage = |message| Failure { code: USAGE, message };
    if !["redis", "valkey"].iter().any(|server| url.starts_with(server)) {
        let scheme = url.split(':').next().unwrap_or_default().escape_debug();
        return Err(usage(format!(
            "--{key} is for Redis and Valkey servers with replicas, and the store's URL begins with `{scheme}:`"
        )));
    }
    let query = url.split_once('?').map(|(_, query)| query);
    let told =
        query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    match told {
        Some(told) if is_same(told) => Ok(url),
        Some(told) => Err(usage(format!(
            "--{key} {value} differs from `{key}={}` in the store's URL, and all clients of a lock must agree: leave \
             one of them out",
            told.escape_debug()
        ))),
        None => Ok(format!("{url}{}{key}={value}", if query.is_some() { '&' } else { '?' })),
    }
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
    fn a_flag_is_a_part_of_the_url_and_must_not_differ_from_it() {
        let with = |acks, grace: Option<u64>, url: &str| {
            Terms { acks, restart_grace: grace.map(Duration::from_millis) }.in_url(url.into())
        };
        for (acks, grace, url, expected) in [
            (None, None, "file:x", "file:x"),
            (Some(2), None, "redis://h", "redis://h?acks=2"),
            (Some(2), None, "redis://h?acks=2", "redis://h?acks=2"),
            (Some(2), Some(1_500), "valkeys://h?ca=x", "valkeys://h?ca=x&acks=2&restart-grace=1500ms"),
            (None, Some(5_000), "redis://h", "redis://h?restart-grace=5s"),
            (None, Some(60_000), "redis://h?restart-grace=1m&acks=1", "redis://h?restart-grace=1m&acks=1"),
        ] {
            assert_eq!(with(acks, grace, url).expect(url), expected);
        }
        for (acks, grace, url, says) in [
            (Some(2), None, "redis://h?acks=1", ["--acks 2", "`acks=1`"]),
            (None, Some(5_000), "redis://h?restart-grace=6s", ["--restart-grace 5s", "`restart-grace=6s`"]),
            (Some(2), None, "file:x", ["--acks", "`file:`"]),
        ] {
            let failure = with(acks, grace, url).expect_err(url);
            assert!(
                failure.code == USAGE && says.iter().all(|says| failure.message.contains(says)),
                "{failure:?}"
            );
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
