//! A server's own wall clock, stepped and frozen by the test while the server runs.
//!
//! The server is started with `shim/clock.c` preloaded, which reads its settings from a shared file: byte 0
//! selects one of 256 settings that start at byte 8, each an offset and a fixed time, in µs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The wall clock of one server. It survives restarts, as a machine's clock does.
///
/// It affects `TIME`, expiry and scripts. The server's own timers are monotonic and unaffected.
#[derive(Debug)]
pub struct Clock {
    file: File,
    setting: Mutex<Setting>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    slot: u8,
    offset_us: i64,
    frozen_us: Option<i64>,
}

const FILE: &str = "clock";
const LIBRARY: &str = "clock.so";
const VARIABLE: &str = "TENURE_CLOCK";

impl Clock {
    /// Installs a clock that shows the real time in a server's directory.
    pub(super) fn install(dir: &Path) -> io::Result<Self> {
        fs::write(dir.join(LIBRARY), library())?;
        let file = File::options().write(true).create(true).truncate(true).open(dir.join(FILE))?;
        file.set_len(8 + 256 * 16)?;
        Ok(Self { file, setting: Mutex::default() })
    }

    /// The environment variables that a server in `dir` needs.
    pub(super) fn environment(dir: &Path) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", dir.join(LIBRARY)), (VARIABLE, dir.join(FILE))]
    }

    /// Steps the clock by `ms` milliseconds, backwards if negative. A frozen clock stays frozen.
    pub fn step_ms(&self, ms: i64) {
        self.change(|setting| match &mut setting.frozen_us {
            Some(time) => *time += ms * 1000,
            None => setting.offset_us += ms * 1000,
        });
    }

    /// Steps the clock forward.
    pub fn forward(&self, by: Duration) {
        self.step_ms(ms(by));
    }

    /// Steps the clock back.
    pub fn back(&self, by: Duration) {
        self.step_ms(-ms(by));
    }

    /// Freezes the clock at a time in µs since 1970, until the next call or [`Clock::reset`]. The server then
    /// sees exactly this time.
    ///
    /// # Panics
    /// At 0, which means "not frozen", and beyond the year 290,000.
    pub fn freeze_us(&self, time_us: u64) {
        assert_ne!(time_us, 0, "the server's clock cannot stand at 0");
        let time_us = i64::try_from(time_us).expect("a time that fits into 63 bits");
        self.change(|setting| setting.frozen_us = Some(time_us));
    }

    /// Freezes the clock at its current time.
    pub fn freeze(&self) {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).expect("a real clock after 1970");
        let real_us = i64::try_from(real.as_micros()).expect("a time that fits into 63 bits");
        self.change(|setting| {
            setting.frozen_us = Some(setting.frozen_us.unwrap_or(real_us + setting.offset_us))
        });
    }

    /// Resets the clock to the real time, running.
    pub fn reset(&self) {
        self.change(|setting| *setting = Setting { slot: setting.slot, ..Setting::default() });
    }

    fn change(&self, change: impl FnOnce(&mut Setting)) {
        let mut setting = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut setting);
        setting.slot = setting.slot.wrapping_add(1);
        let words = [setting.offset_us.to_ne_bytes(), setting.frozen_us.unwrap_or(0).to_ne_bytes()].concat();
        let at = 8 + 16 * u64::from(setting.slot);
        let written =
            self.file.write_all_at(&words, at).and_then(|()| self.file.write_all_at(&[setting.slot], 0));
        written.expect("the clock's file can be written");
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("a step that fits into 63 bits")
}

/// The shim, compiled once per test process.
fn library() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (source, out) = (dir.path().join("clock.c"), dir.path().join("clock.so"));
        fs::write(&source, include_str!("../../shim/clock.c")).expect("a writable temporary directory");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-O1", "-shared", "-fPIC", "-o"]).arg(&out).arg(&source);
        let compiled = compiler.output().unwrap_or_else(|error| {
            panic!("cc: {error}; a server with a clock needs a C compiler: apt-get install gcc libc6-dev")
        });
        assert!(compiled.status.success(), "cc: {}", String::from_utf8_lossy(&compiled.stderr));
        fs::read(&out).expect("cc wrote its output")
    })
}
