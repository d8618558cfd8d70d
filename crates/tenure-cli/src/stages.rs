//! Dispatches hidden first arguments to the stages of this program.

use std::env::ArgsOs;

use crate::exit::OWN;
use crate::launch::{self, FOREGROUND, KEEP, LAUNCH, STRESS, WATCHDOG, pid};
use crate::stress::worker;
use crate::{keep, terminal, watchdog};

/// Runs the stage that these arguments name, if any.
pub(crate) fn stage(mut args: ArgsOs) -> Option<u8> {
    args.next();
    match args.next()?.to_str()? {
        LAUNCH => Some(launch::launch(args).unwrap_or(OWN)),
        FOREGROUND => Some(foreground(args).unwrap_or(OWN)),
        KEEP => Some(keep::stage(args).unwrap_or(OWN)),
        WATCHDOG => Some(watchdog::stage().unwrap_or(OWN)),
        STRESS => Some(worker::stage(args).unwrap_or(OWN)),
        _ => None,
    }
}

fn foreground(mut args: ArgsOs) -> Option<u8> {
    let group = pid(&args.next()?)?;
    terminal::make_foreground(group).is_ok().then_some(0)
}
