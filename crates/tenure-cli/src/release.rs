//! `tenure release --force`: ends what holds a lock.

use tenure::Options;

use crate::cli::Release;
use crate::exit::{self, Failure};
use crate::{json, output, status, store};

/// Ends it, and prints what it was; returns whether there was something, as the code to exit with.
pub(crate) async fn release(args: &Release) -> Result<u8, Failure> {
    let locks = store::open(&args.store, Options::new())?;
    let ended = locks.force_release(&args.name).await?;
    let lines = match &ended {
        ended if args.json => json::lock(&args.name, ended.as_ref()),
        Some(ended) => status::held("was held", ended),
        None => "free\n".to_owned(),
    };
    output::print(lines).map_err(|error| Failure::own("cannot print", &error))?;
    Ok(if ended.is_some() { 0 } else { exit::FREE })
}
