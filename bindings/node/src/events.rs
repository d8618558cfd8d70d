//! Events of the library, for the thread of JavaScript that loaded the package first.

use std::sync::{Arc, Mutex, Once, Weak};

use napi_derive::napi;
use tenure::bindings::{Report, event_log};

use crate::channel::Thread;
use crate::engine::lock;
use crate::error::{Result, invalid};
use crate::value::Value;

static LISTENER: Mutex<Weak<Thread>> = Mutex::new(Weak::new());

fn tell(event: event_log::LogEvent) {
    let listener = lock(&LISTENER).upgrade();
    let Some(thread) = listener.filter(|thread| !thread.is_over()) else { return };
    let level = event.level.as_str().to_ascii_lowercase();
    let mut fields = vec![("level", level.into()), ("message", event.message.into())];
    fields.extend(event.fields.into_iter().map(|(name, text)| (name, text.into())));
    thread.tell(Value::Report(Report::Object(fields)));
}

/// Lets a thread hear the events unless another one does.
pub fn listen(thread: &Arc<Thread>) {
    static INSTALL: Once = Once::new();
    let mut listener = lock(&LISTENER);
    if listener.upgrade().is_none_or(|thread| thread.is_over()) {
        *listener = Arc::downgrade(thread);
    }
    drop(listener);
    INSTALL.call_once(|| event_log::listen(tell));
}

/// Sets the least severe level of the events that are delivered; `off` for none.
#[napi]
pub fn set_log_level(level: String) -> Result<()> {
    let known = || invalid(format!("level: got {level:?}, expected off, error, warn, info, debug or trace"));
    let level = if level == "off" { None } else { Some(level.parse().map_err(|_| known())?) };
    event_log::set_level(level);
    Ok(())
}
