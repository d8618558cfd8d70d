//! A store on a server with compare-and-swap of a single key: here a directory with a file for each key, which has
//! its version and its text. `book/contribute/writing-a-store.md` describes it.
//!
//! A server such as NATS KV or Kubernetes has the same three operations: read a key, write it if it still has a
//! version, and watch it. It also pushes changes, while this directory is polled, and has no use for the guard.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, ready};
use futures_util::stream::{BoxStream, StreamExt, unfold};
use tenure_core::cas::{Cas, KeyEntry, KeyName, KeyPage, KeyValueServer, KeyWrite, KeyWritten, OneKey};
use tenure_core::name::LockName;
use tenure_core::runtime::Runtime;
use tenure_core::store::{Cursor, Failure, Store, StoreFuture};

/// How often a watch reads its key.
const POLL: Duration = Duration::from_millis(10);
/// Maximum size of a text, that of a message of NATS by default.
const LIMIT: usize = 1 << 20;

/// The server.
#[derive(Clone, Debug)]
struct KeyFiles {
    dir: PathBuf,
    runtime: Arc<dyn Runtime>,
    /// Markers end by themselves, as keys with a time to live do on NATS. Otherwise clients remove them.
    expires: bool,
}

/// The content of a key's file.
struct KeyFile {
    /// When a marker ends, on the clock of the machine, which all its processes share.
    ends_ms: Option<u64>,
    name: String,
    entry: KeyEntry,
}

impl KeyFile {
    /// `VERSION END LENGTH`, and the name of that length and the text after the first line.
    fn parse(file: &str) -> Option<Self> {
        let (head, rest) = file.split_once('\n')?;
        let [version, ends_ms, length] = head.split(' ').collect::<Vec<_>>()[..] else { return None };
        let (name, text) = rest.split_at_checked(length.parse().ok()?)?;
        let entry = KeyEntry { version: version.parse().ok()?, text: text.to_owned() };
        Some(Self { ends_ms: ends_ms.parse().ok(), name: name.to_owned(), entry })
    }

    fn text(&self) -> String {
        let Self { ends_ms, name, entry: KeyEntry { version, text } } = self;
        let ends = ends_ms.map_or("never".to_owned(), |ms| ms.to_string());
        format!("{version} {ends} {}\n{name}{text}", name.len())
    }
}

impl KeyFiles {
    /// A store on the locks in this directory.
    fn open(dir: PathBuf, expires: bool, runtime: Arc<dyn Runtime>) -> Arc<dyn Store> {
        let url = format!("keys:{}", dir.display());
        let server = Arc::new(Self { dir, runtime: Arc::clone(&runtime), expires });
        Arc::new(Cas::new(Arc::new(OneKey::new(server, Arc::clone(&runtime))), &url, runtime))
    }

    /// A name may have any bytes, and more than a file's may: so the file has a hash of it (FNV-1a).
    fn path(&self, key: &KeyName) -> PathBuf {
        const OFFSET: u128 = 0x6c62272e07bb014262b821756295c58d;
        const PRIME: u128 = 0x0000000001000000000000000000013b;
        self.dir.join(match key {
            KeyName::Marker(session) => format!("marker-{session:x}"),
            KeyName::Lock(name) => {
                let bytes = name.as_str().bytes();
                let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
                format!("lock-{hash:032x}")
            }
        })
    }

    fn find(&self, key: &KeyName) -> io::Result<Option<KeyEntry>> {
        let path = self.path(key);
        let file = match fs::read_to_string(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(found) = KeyFile::parse(&file).filter(|found| found.name == name(key)) else {
            return Err(io::Error::other(format!("{}: got another file, expected a key", path.display())));
        };
        if found.ends_ms.is_some_and(|ends_ms| ends_ms < self.runtime.now().millis()) {
            return Ok(None);
        }
        Ok(Some(found.entry))
    }

    /// The guard is locked from the comparison to the write, and free again when its process ends. The rename
    /// replaces the old file by the new one in one step.
    fn swap(&self, key: &KeyName, write: KeyWrite) -> io::Result<KeyWritten> {
        let mut guard = File::options().create(true).read(true).append(true).open(self.dir.join("guard"))?;
        guard.lock()?;
        let found = self.find(key)?;
        if found.is_none() {
            // A marker that has ended.
            let _ = fs::remove_file(self.path(key));
        }
        if found.as_ref().map(|entry| entry.version) != write.seen {
            return Ok(Err(found));
        }
        let Some(text) = write.text else {
            fs::remove_file(self.path(key))?;
            return Ok(Ok(0));
        };
        // One byte for each write of any key, so that no version comes again after a key was removed by hand.
        guard.write_all(b".")?;
        let version = guard.metadata()?.len();
        let ends = write.life.filter(|_| self.expires).map(|life| (self.runtime.now() + life).millis());
        let file = KeyFile { ends_ms: ends, name: name(key).to_owned(), entry: KeyEntry { version, text } };
        let new = self.dir.join("new");
        fs::write(&new, file.text())?;
        fs::rename(&new, self.path(key))?;
        Ok(Ok(version))
    }

    fn page(&self, prefix: &str) -> io::Result<Vec<(LockName, KeyEntry)>> {
        let mut page = Vec::new();
        for found in fs::read_dir(&self.dir)? {
            let found = found?;
            if !found.file_name().to_string_lossy().starts_with("lock-") {
                continue;
            }
            let file = KeyFile::parse(&fs::read_to_string(found.path())?);
            let file = file.filter(|file| file.name.starts_with(prefix));
            page.extend(file.and_then(|file| Some((LockName::new(&file.name).ok()?, file.entry))));
        }
        Ok(page)
    }

    /// The next value of a lock after this version.
    async fn change(&self, key: &KeyName, version: Option<u64>) -> Result<KeyEntry, Failure> {
        loop {
            let found = self.find(key).map_err(failure)?;
            match found.filter(|found| Some(found.version) != version) {
                Some(found) => return Ok(found),
                None => self.runtime.sleep_until(self.runtime.now() + POLL).await,
            }
        }
    }
}

fn name(key: &KeyName) -> &str {
    if let KeyName::Lock(name) = key { name.as_str() } else { "" }
}

fn failure(error: impl Display) -> Failure {
    Failure::NotSent(Failure::cause(error.to_string()))
}

/// The file system answers at once, so each future is ready, and a request that is dropped has not begun: a client of
/// a network returns [`Failure::Unknown`] for a write whose answer is lost.
impl KeyValueServer for KeyFiles {
    fn read(&self, key: &KeyName) -> StoreFuture<Option<KeyEntry>> {
        let (server, key) = (self.clone(), key.clone());
        async move { server.find(&key).map_err(failure) }.boxed()
    }

    fn write(&self, key: &KeyName, write: KeyWrite) -> StoreFuture<KeyWritten> {
        let (server, key) = (self.clone(), key.clone());
        async move { server.swap(&key, write).map_err(failure) }.boxed()
    }

    fn watch(&self, name: &LockName) -> StoreFuture<BoxStream<'static, Result<KeyEntry, Failure>>> {
        let (server, key) = (self.clone(), KeyName::Lock(name.clone()));
        async move {
            let version = server.find(&key).map_err(failure)?.map(|entry| entry.version);
            let changes = unfold((server, key, version), |(server, key, version)| async move {
                let change = server.change(&key, version).await;
                let version = change.as_ref().map_or(version, |entry| Some(entry.version));
                Some((change, (server, key, version)))
            });
            Ok(changes.boxed())
        }
        .boxed()
    }

    fn list(&self, prefix: &str, _from: Cursor) -> StoreFuture<KeyPage> {
        let (server, prefix) = (self.clone(), prefix.to_owned());
        async move { Ok((server.page(&prefix).map_err(failure)?, None)) }.boxed()
    }

    fn ready(&self) -> StoreFuture<()> {
        ready(self.dir.metadata().map(drop).map_err(failure)).boxed()
    }

    fn limit(&self) -> usize {
        LIMIT
    }
}

/// The conformance suite, on markers that end by themselves and on markers that clients remove.
mod tests {
    use tempfile::tempdir;
    use tenure_testkit::conformance::{Case, Fixture, Flavour, on_store};

    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>, expires: bool) {
        let dir = tempdir().expect("a directory");
        let path = dir.path().to_owned();
        on_store(flavour, case, move |runtime| Ok(KeyFiles::open(path.clone(), expires, runtime)));
    }

    mod expiring {
        fn run(flavour: super::Flavour, case: for<'a> fn(&'a super::Fixture) -> super::Case<'a>) {
            super::run(flavour, case, true);
        }

        tenure_testkit::conformance!(crate::key_files::tests::expiring::run);
    }

    mod lasting {
        fn run(flavour: super::Flavour, case: for<'a> fn(&'a super::Fixture) -> super::Case<'a>) {
            super::run(flavour, case, false);
        }

        tenure_testkit::conformance!(crate::key_files::tests::lasting::run);
    }
}
