//! The file of `--state`, which keeps the histories while the program does not run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::Seen;
use crate::clock;
use crate::exit::{Failure, USAGE};
use crate::observed::Observed;
use crate::output;

/// Interval at which the file is written; it is also written at the end.
const EVERY: Duration = Duration::from_secs(30);
const FORMAT: u64 = 1;

pub(super) struct StateFile {
    path: PathBuf,
    /// The store and the prefix of names: the histories of others are refused.
    of: [String; 2],
    written: Duration,
    has_complained: bool,
}

impl StateFile {
    /// Opens a file, with the histories in it; there are none if it does not exist.
    pub(super) fn open(path: &Path, of: [String; 2]) -> Result<(Self, Seen), Failure> {
        let refused = |what: &str| Failure::new(USAGE, format!("--state {}: {what}", path.display()));
        let mut seen = Seen::default();
        match fs::read(path) {
            Ok(bytes) => {
                let saved: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let histories = |what: &str| {
                    Observed::restored(&saved[what])
                        .filter(|_| saved["format"] == FORMAT)
                        .ok_or_else(|| refused("it is no history of this version; remove it"))
                };
                (seen.locks, seen.elections) = (histories("locks")?, histories("elections")?);
                if saved["of"] != json!(of) {
                    return Err(refused(&format!(
                        "it is the history of {}, and this is {of:?}",
                        saved["of"]
                    )));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::own(&format!("cannot read {}", path.display()), &error)),
        }
        let file = Self { path: path.to_owned(), of, written: clock::now(), has_complained: false };
        // Fail now, and not after a day, if the file cannot be written.
        file.write(&seen)
            .map_err(|error| Failure::own(&format!("cannot write {}", path.display()), &error))?;
        Ok((file, seen))
    }

    /// Writes the file if it is due.
    pub(super) fn keep(&mut self, seen: &Seen, is_last: bool) {
        if !is_last && clock::now() < self.written + EVERY {
            return;
        }
        self.written = clock::now();
        match self.write(seen) {
            Err(error) if !self.has_complained => {
                self.has_complained = true;
                output::complain(format_args!("cannot write {}: {error}", self.path.display()));
            }
            written => self.has_complained &= written.is_err(),
        }
    }

    /// Replaces the file, so that a crash leaves the old one or the new one.
    fn write(&self, seen: &Seen) -> io::Result<()> {
        let (locks, elections) = (seen.locks.saved(), seen.elections.saved());
        let text = json!({ "format": FORMAT, "of": self.of, "locks": locks, "elections": elections });
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        fs::write(&new, text.to_string())?;
        fs::rename(&new, &self.path)
    }
}
