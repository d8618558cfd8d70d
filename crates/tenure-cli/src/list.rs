//! `tenure list`: the locks that are held.

use crate::cli::List;
use crate::exit::Failure;
use crate::output::{self, Line};
use crate::{json, status, store};

/// Prints a line for each lock: its name, its kind and its holders, with tabs between. Returns the
/// code to exit with.
pub(crate) async fn list(args: &List) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let mut listing = locks.list(&args.names)?;
    while let Some(found) = listing.next().await? {
        let line = match args.json {
            true => json::lock(&locks, found.name.as_str(), Some(&found)),
            false => format!("{}\t{}\t{}\n", Line(found.name.as_str()), found.kind, status::holders(&found)),
        };
        output::print(line).map_err(|error| Failure::own("cannot print", &error))?;
    }
    Ok(0)
}
