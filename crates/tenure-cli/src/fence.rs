//! `tenure fence`: statements that make a database reject old tokens.

use tenure::fence;

use crate::asked;
use crate::cli::{Database, Fence, FenceText};

/// Prints them; returns the exit code.
pub(crate) fn fence(args: &Fence) -> u8 {
    asked::nothing_but(match args.text {
        FenceText::Sql { database: Database::Postgres } => fence::POSTGRES,
        FenceText::Sql { database: Database::Mysql } => fence::MYSQL,
        FenceText::Sql { database: Database::Sqlite } => fence::SQLITE,
        FenceText::Lua => fence::REDIS,
    })
}
