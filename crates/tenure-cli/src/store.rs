//! Determines the store that a command line means.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tenure::diagnosis::{self, Topology};
use tenure::{Locks, Options};
use tokio::time::sleep;

use crate::cli::Store;
use crate::config;
use crate::duration::duration;
use crate::exit::{Failure, OWN, STORE, USAGE, advice, chain, of_error};
use crate::output::Line;

/// Guarantees given by flags: shorthands for parts of the store's URL.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guarantees {
    pub(crate) acks: Option<u32>,
    pub(crate) restart_grace: Option<Duration>,
}

/// Opens the named store, or the one in the user's state directory, without I/O.
pub(crate) fn open(
    args: &Store,
    guarantees: Guarantees,
    change: impl FnOnce(Options) -> Options,
) -> Result<Locks, Failure> {
    open_at(&url_with(args, guarantees)?, &args.prefix, change)
}

/// Opens the store at this URL, without I/O.
pub(crate) fn open_at(
    url: &str,
    prefix: &str,
    change: impl FnOnce(Options) -> Options,
) -> Result<Locks, Failure> {
    let locks = Locks::open(url).map_err(|error| {
        // No request was sent: the library's thread could not be started.
        let code = if error.is_unreachable() { OWN } else { of_error(&error) };
        Failure::new(code, chain(&error))
    })?;
    Ok(locks.with(|options| change(options.op_timeout(PATIENCE)).prefix(prefix))?)
}

/// Like `open`, for reading: a named directory must exist.
pub(crate) fn open_existing(args: &Store) -> Result<Locks, Failure> {
    open_existing_with(args, Guarantees::default(), |options| options)
}

/// Sends a verb's first request. A silent store gets its [time](PATIENCE), but if no server is listening or its
/// host does not resolve, this fails at once.
pub(crate) async fn unless_absent<T>(locks: &Locks, request: impl Future<Output = T>) -> Result<T, Failure> {
    match select(pin!(is_there(locks)), pin!(request)).await {
        Either::Left((there, request)) => {
            there?;
            Ok(request.await)
        }
        Either::Right((answer, _)) => Ok(answer),
    }
}

/// Pings a store that does not answer immediately. Fails if no server is listening or its host does not resolve.
/// Other errors surface with the request itself.
#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
async fn is_there(locks: &Locks) -> Result<(), Failure> {
    const DELAY: Duration = Duration::from_millis(100);
    // Longer than the two seconds of a dial: a ping that is sent last and not answered in time would end the
    // connection under the request.
    const LIMIT: Duration = Duration::from_secs(3);
    if locks.url().starts_with("file:") {
        return Ok(());
    }
    sleep(DELAY).await;
    let is_known = |why: &str| advice(why).is_some() || why.contains("No such file");
    match locks.with(|options| options.op_timeout(LIMIT))?.ping().await {
        Err(error) if error.is_unreachable() && is_known(&chain(&error)) => Err(error.into()),
        _ => Ok(()),
    }
}

pub(crate) fn open_existing_with(
    args: &Store,
    guarantees: Guarantees,
    change: impl FnOnce(Options) -> Options,
) -> Result<Locks, Failure> {
    let url = url_with(args, guarantees)?;
    if let Some(directory) = directory(&url)
        && named(args).is_ok_and(|named| named.is_said())
    {
        // Distinguish a missing directory from an unreadable one, which the store reports.
        if directory.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Err(missing(directory));
        }
    }
    open_at(&url, &args.prefix, change)
}

/// The path of a store in a directory.
pub(crate) fn directory(url: &str) -> Option<&Path> {
    let path = url.strip_prefix("file:")?;
    Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
}

/// The error for a directory that does not exist.
pub(crate) fn missing(directory: &Path) -> Failure {
    let shown = directory.display();
    let message = format!("the store's directory {shown} does not exist; `tenure run` creates it");
    Failure::new(STORE, message)
}

/// The store's URL, with the guarantees given by flags.
pub(crate) fn url_with(args: &Store, guarantees: Guarantees) -> Result<String, Failure> {
    guarantees.in_url(url(args)?)
}

impl Guarantees {
    /// Adds the guarantees to the URL. A flag that contradicts the URL is an error, because all clients of a lock
    /// must agree.
    fn in_url(self, url: String) -> Result<String, Failure> {
        let scheme = scheme(&url);
        let flag = self.acks.map(|_| "acks").or(self.restart_grace.map(|_| "restart-grace"));
        if let Some(flag) = flag
            && !Topology::knows(scheme)
        {
            let (scheme, flag) = (scheme.escape_debug(), with_origin(flag));
            return Err(usage(format!(
                "{flag} is for Redis and Valkey servers with replicas, and the store's URL begins with `{scheme}:`"
            )));
        }
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

/// A guarantee's flag, and the line of a configuration file that sets it.
fn with_origin(flag: &str) -> String {
    match ["run", "acquire"].iter().find_map(|verb| config::config().flag(verb, flag)) {
        Some((setting, path)) => format!("--{flag}, from {},", config::origin(path, setting.line)),
        None => format!("--{flag}"),
    }
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

/// Adds the namespace given by the flag.
fn in_namespace(url: String, namespace: Option<&str>) -> Result<String, Failure> {
    match namespace {
        None => Ok(url),
        Some(_) if scheme(&url) == "file" => {
            Err(usage("--namespace is for stores on servers: name another directory instead"))
        }
        Some(namespace) => with_part(url, "namespace", namespace, |told| told == namespace),
    }
}

/// Adds a parameter to the URL's query, unless it is there.
fn with_part(
    url: String,
    key: &str,
    value: &str,
    is_same: impl FnOnce(&str) -> bool,
) -> Result<String, Failure> {
    let query = url.split_once('?').map(|(_, query)| query);
    let told =
        query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    match told {
        Some(told) if is_same(told) => Ok(url),
        Some(told) => Err(usage(format!(
            "{} {value} differs from `{key}={}` in the store's URL, and all clients of a lock must agree: leave \
             one of them out",
            with_origin(key),
            told.escape_debug()
        ))),
        None => Ok(format!("{url}{}{key}={value}", if query.is_some() { '&' } else { '?' })),
    }
}

/// The store that is meant, and what named it.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) is: Is,
    /// For display: a flag, a variable, or a line of a file.
    pub(crate) origin: String,
    /// Whether a configuration file names it.
    is_configured: bool,
}

#[derive(Debug)]
pub(crate) enum Is {
    Url(String),
    /// A file that contains the URL.
    File(PathBuf),
    /// The directory in the user's state directory.
    Default,
}

impl Named {
    fn new(is: Is, origin: impl Into<String>) -> Self {
        Self { is, origin: origin.into(), is_configured: false }
    }

    /// Whether a store was named.
    fn is_said(&self) -> bool {
        !matches!(self.is, Is::Default)
    }

    pub(crate) fn url(&self) -> Result<String, Failure> {
        match &self.is {
            Is::Url(url) => Ok(url.clone()),
            Is::File(path) => match fs::read_to_string(path) {
                Ok(text) if text.trim().contains(char::is_control) => {
                    let message = format!(
                        "{} ({}) must have the store's URL in one line, and nothing else",
                        path.display(),
                        self.origin
                    );
                    Err(usage(message))
                }
                Ok(text) => Ok(text.trim().to_owned()),
                Err(error) => {
                    let (path, origin) = (path.display(), &self.origin);
                    Err(usage(format!("cannot read the store's URL in {path} ({origin}): {error}")))
                }
            },
            Is::Default => default(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")),
        }
    }
}

/// Refuses the default store for what hosts do together, because each would be alone in a directory of its own.
pub(crate) fn must_be_named(args: &Store, what: &str) -> Result<(), Failure> {
    if named(args)?.is_said() {
        return Ok(());
    }
    Err(usage(format!(
        "{what} needs a store that its hosts share, and none is configured: write --store redis://HOST, set \
         TENURE_STORE, or put store = \"redis://HOST\" into /etc/tenure.toml; --store file:DIR is for this machine \
         alone"
    )))
}

/// The URL for another command of this machine, which may have another working directory: without a password.
fn handed_on(url: &str) -> OsString {
    let url = diagnosis::without_password(url).unwrap_or_else(|| url.to_owned());
    let at = directory(&url).and_then(|path| std::path::absolute(path).ok());
    at.map_or(url.into(), |path| OsString::from_iter(["file:".as_ref(), path.as_os_str()]))
}

/// The flags with which another command of this machine reaches this store, and whether they lack its login, which
/// is not for display.
#[cfg(feature = "serve")]
pub(crate) fn flags(args: &Store) -> Result<(Vec<String>, bool), Failure> {
    let (named, mut flags, mut lacks_login) = (named(args)?, Vec::new(), false);
    let mut add = |flag: &str, value: String| flags.extend([flag.to_owned(), value]);
    let absolute =
        |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    if let Some(path) = &config::config().given {
        add("--config", absolute(path));
    }
    match &named.is {
        _ if named.is_configured => {}
        Is::File(path) => add("--store-file", absolute(path)),
        Is::Url(url) => {
            lacks_login = diagnosis::without_password(url).is_some();
            add("--store", handed_on(url).to_string_lossy().into_owned());
        }
        Is::Default => {}
    }
    if let Some(namespace) = &args.namespace {
        add("--namespace", namespace.clone());
    }
    Ok((flags, lacks_login))
}

/// The variables with which a command of this package finds the store at `url`, if it runs under one with `args`.
/// Of a URL with a password it gets the rest, so that the store refuses it.
pub(crate) fn variables(args: &Store, url: &str) -> Result<Vec<(&'static str, Option<OsString>)>, Failure> {
    let named = named(args)?;
    let is_whole = args.namespace.is_none();
    Ok(match named.is {
        // It reads the same file, or has the same default.
        Is::Default => Vec::new(),
        _ if named.is_configured && config::config().given.is_none() && is_whole => Vec::new(),
        Is::File(path) if is_whole => {
            let path = std::path::absolute(&path).unwrap_or(path);
            vec![(STORE_FILE, Some(path.into())), (STORE_URL, None)]
        }
        Is::Url(_) | Is::File(_) => {
            vec![(STORE_URL, Some(handed_on(url))), (STORE_FILE, None)]
        }
    })
}

/// Flags take precedence over the environment, and that over the configuration files.
pub(crate) fn named(args: &Store) -> Result<Named, Failure> {
    if let Some(url) = &args.url {
        return Ok(Named::new(Is::Url(url.clone()), "--store"));
    }
    if let Some(file) = &args.file {
        return Ok(Named::new(Is::File(file.clone()), "--store-file"));
    }
    match (std::env::var_os(STORE_URL), std::env::var_os(STORE_FILE)) {
        (Some(_), Some(_)) => Err(usage("TENURE_STORE and TENURE_STORE_FILE are both set: unset one")),
        (Some(url), None) => match url.into_string() {
            Ok(url) => Ok(Named::new(Is::Url(url), "environment, TENURE_STORE")),
            Err(_) => Err(usage("TENURE_STORE is not UTF-8")),
        },
        (None, Some(file)) => Ok(Named::new(Is::File(file.into()), "environment, TENURE_STORE_FILE")),
        (None, None) => Ok(match config::config().store() {
            Some((setting, path)) => {
                let is_file = setting.key == "store-file";
                let value = setting.value.clone();
                let origin = Line(&config::origin(path, setting.line)).to_string();
                if is_file && !Path::new(&value).is_absolute() {
                    return Err(elsewhere(&value, &origin));
                }
                let is = if is_file { Is::File(value.into()) } else { Is::Url(value) };
                Named { is_configured: true, ..Named::new(is, origin) }
            }
            None => Named::new(Is::Default, "default"),
        }),
    }
}

/// How long to wait for an unresponsive store, unless the command line sets a limit.
///
/// An unresponsive store is rarely down: of a thousand commands that start at once, the last get their
/// answers after seconds. A refused connection or an unusable directory is reported at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The environment variable with the store's URL.
pub(crate) const STORE_URL: &str = "TENURE_STORE";
/// The environment variable with the path of a file that contains the store's URL.
pub(crate) const STORE_FILE: &str = "TENURE_STORE_FILE";

/// The part of the URL that selects the store.
pub(crate) fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

/// The URL without a password, for display.
pub(crate) fn shown(url: &str) -> String {
    diagnosis::shown(url)
        .filter(|_| scheme(url) != "memory")
        .unwrap_or_else(|| "(a URL that cannot be used)".into())
}

/// A configured path that would be another one in each working directory.
fn elsewhere(path: &str, origin: &str) -> Failure {
    usage(format!("{path:?} ({origin}) depends on the working directory: write a path that begins with /"))
}

pub(crate) fn url(args: &Store) -> Result<String, Failure> {
    let named = named(args)?;
    let url = named.url()?;
    if url.is_empty() {
        let message = format!(
            "the store is empty ({}): write --store file:DIR or --store redis://HOST, or leave out --store \
             and unset TENURE_STORE for the default",
            named.origin
        );
        return Err(usage(message));
    }
    if let Some(path) = url.strip_prefix("file:")
        && (path.trim() != path || path.contains(char::is_control))
    {
        let message = format!(
            "the store's directory {path:?} ({}) begins or ends with a space, or has a control character: write \
             file:DIR",
            named.origin
        );
        return Err(usage(message));
    }
    if let Some(path) = url.strip_prefix("file:") {
        if path == "~" || path.starts_with("~/") {
            let what = format!("the store's directory {path:?} ({})", named.origin);
            return Err(usage(format!("{what}: only a shell expands ~, so write the whole path")));
        }
        if named.is_configured && !Path::new(path).is_absolute() {
            return Err(elsewhere(path, &named.origin));
        }
    }
    if url.starts_with("memory:") {
        return Err(usage(
            "a memory: store is not shared between processes; use --store file:DIR or a server",
        ));
    }
    in_namespace(url, args.namespace.as_deref())
}

/// The store in the user's state directory.
fn default(state: Option<OsString>, home: Option<OsString>) -> Result<String, Failure> {
    let state = config::base_directory(state, home, ".local/state");
    let directory = state.map(|state| state.join("tenure"));
    match directory.as_deref().map(|path| path.to_str()) {
        Some(Some(path)) => Ok(format!("file:{path}")),
        Some(None) => Err(refuse("the path of the user's state directory is not UTF-8")),
        None => Err(refuse("neither XDG_STATE_HOME nor HOME is an absolute path")),
    }
}

fn refuse(why: &str) -> Failure {
    usage(format!(
        "no default store, because {why}: name one with --store, as in --store file:/var/lib/tenure"
    ))
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
    fn a_flag_is_a_part_of_the_url() {
        let with = |acks, grace: Option<u64>, url: &str| {
            Guarantees { acks, restart_grace: grace.map(Duration::from_millis) }.in_url(url.into())
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
    }

    #[test]
    fn a_namespace_is_a_part_of_the_url_of_a_server() {
        for (url, expected) in [
            ("redis://h", "redis://h?namespace=app:"),
            ("redis+unix:///s?db=1", "redis+unix:///s?db=1&namespace=app:"),
            ("etcd://h?namespace=app:", "etcd://h?namespace=app:"),
        ] {
            assert_eq!(in_namespace(url.into(), Some("app:")).expect(url), expected);
            assert_eq!(in_namespace(url.into(), None).expect(url), url);
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
