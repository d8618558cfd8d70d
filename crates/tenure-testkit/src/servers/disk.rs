//! What a database waits for when it commits.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::process::give_to_nobody;

const SLOW_SYNC: &str = include_str!("slow_sync.c");

/// What a database waits for when it commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disk {
    /// Nothing: a crash of the machine would lose commits.
    #[default]
    Unused,
    /// `fsync`.
    Synced,
    /// `fsync`, which takes longer by this time, as on the network disk of a cloud.
    Slow(Duration),
}

impl Disk {
    /// The command line of a program that uses this disk, with files in `dir`.
    pub(super) fn command(self, program: &str, dir: &Path) -> Vec<String> {
        let Self::Slow(more) = self else { return vec![program.to_owned()] };
        let (source, library) = (dir.join("slow_sync.c"), dir.join("slow_sync.so"));
        if !library.exists() {
            std::fs::write(&source, SLOW_SYNC).expect("our directory");
            let mut built = Command::new("cc");
            built.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
            assert!(built.status().expect("cc").success(), "a C compiler");
            give_to_nobody(&library);
        }
        let (library, more) = (library.display(), more.as_micros());
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={library}"),
            format!("TENURE_SYNC_US={more}"),
            program.to_owned(),
        ]
    }
}
