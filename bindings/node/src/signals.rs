//! Ends by a signal: locks are released first, also while the event loop is blocked.

use std::thread;
use std::time::Duration;

use napi_derive::napi;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::channel::close_all;
use crate::error::{Result, Time, duration, invalid};

/// From now on releases all locks, for at most `time` milliseconds, before one of these signals ends the process. A
/// listener that the program adds later takes the signal over.
#[napi]
pub fn release_on_signals(signals: Vec<i32>, time: f64) -> Result<()> {
    let most = duration("time", &Time::A(time))?;
    let failed = |error: std::io::Error| invalid(error.to_string());
    let mut caught = Signals::new(signals).map_err(failed)?;
    let wait = move || {
        if let Some(signal) = caught.forever().next() {
            close_all(most.min(Duration::from_secs(60)));
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().name("tenure-signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(())
}
