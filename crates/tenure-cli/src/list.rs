//! `tenure list`: the locks that are held.

use tenure::{Options, block_on};

use crate::cli::List;
use crate::exit::Failure;
use crate::output::{self, Line};
use crate::{status, store, warnings};

/// Prints a line for each lock: its name, its kind and its holders, with tabs between.
pub(crate) fn list(args: &List) -> u8 {
    let _printer = warnings::say(false);
    match block_on(print_all(args)) {
        Ok(()) => 0,
        Err(failure) => {
            output::complain(failure.message);
            failure.code
        }
    }
}

async fn print_all(args: &List) -> Result<(), Failure> {
    let mut listing = store::open(&args.store, Options::new())?.list(&args.names)?;
    while let Some(found) = listing.next().await? {
        let line = format!("{}\t{}\t{}\n", Line(found.name.as_str()), found.kind, status::holders(&found));
        output::print(line).map_err(|error| Failure::own("cannot print", &error))?;
    }
    Ok(())
}
