//! `tenure fence`: the texts by which a database refuses old tokens.

use tenure::fence;

use crate::asked;
use crate::cli::{Database, Fence, FenceText};

/// Prints a text; returns the code to exit with.
pub(crate) fn fence(args: &Fence) -> u8 {
    asked::nothing_but(match args.text {
        FenceText::Sql { database: Database::Postgres } => fence::POSTGRES,
        FenceText::Sql { database: Database::Mysql } => fence::MYSQL,
        FenceText::Sql { database: Database::Sqlite } => fence::SQLITE,
        FenceText::Lua => fence::REDIS,
    })
}
