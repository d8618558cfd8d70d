//! `tenure release --force`: ends what holds a lock.

use crate::cli::Release;
use crate::exit::Failure;
use crate::{status, store};

/// Ends it, and prints what it was; returns whether there was something, as the code to exit with.
pub(crate) async fn release(args: &Release) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let ended = match args.foreign {
        true => locks.force_release_foreign(&args.name).await?,
        false => locks.force_release(&args.name).await?,
    };
    status::tell(&locks, "was held", &args.name, ended.as_ref(), args.json)
}
