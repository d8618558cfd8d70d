//! `tenure fence`: the texts by which a database refuses old tokens.

use tenure::fence;

use crate::cli::{Database, Fence, FenceText};
use crate::exit;
use crate::output;

/// Prints a text whole, or fails: half of a migration must not look like all of it. Returns the
/// code to exit with.
pub(crate) fn fence(args: &Fence) -> u8 {
    let text = match args.text {
        FenceText::Sql { database: Database::Postgres } => fence::POSTGRES,
        FenceText::Sql { database: Database::Mysql } => fence::MYSQL,
        FenceText::Sql { database: Database::Sqlite } => fence::SQLITE,
        FenceText::Lua => fence::REDIS,
    };
    match output::print_all(text) {
        Ok(()) => 0,
        Err(error) => {
            output::complain(format_args!("cannot print: {error}"));
            exit::OWN
        }
    }
}
