//! `tenure release --force`: ends what holds a lock.

use tenure::Options;

use crate::cli::Release;
use crate::exit::Failure;
use crate::{status, store};

/// Ends it, and prints what it was; returns whether there was something, as the code to exit with.
pub(crate) async fn release(args: &Release) -> Result<u8, Failure> {
    let locks = store::open(&args.store, Options::new())?;
    status::tell("was held", &args.name, locks.force_release(&args.name).await?.as_ref(), args.json)
}
