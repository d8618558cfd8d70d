//! `tenure`: runs a program under a distributed lock, shows holders, ends a hold by force, and
//! tests a store.

mod ancestors;
mod child;
mod cli;
mod clock;
mod duration;
mod exit;
mod json;
mod killer;
mod kind;
mod launch;
mod limits;
mod list;
mod output;
mod printer;
mod release;
mod run;
mod signals;
mod stages;
mod status;
mod store;
mod stress;
mod terminal;
mod warnings;
mod watch;

use std::process::ExitCode;

use cli::{Cli, Command};
use exit::Failure;

fn main() -> ExitCode {
    if let Some(code) = stages::stage(std::env::args_os()) {
        return code.into();
    }
    limits::or_panic_in_one_line(|| match Cli::read() {
        Ok(Cli { command: Command::Run(args) }) => run::run(&args),
        Ok(Cli { command: Command::Status(args) }) => asked(status::status(&args)),
        Ok(Cli { command: Command::List(args) }) => asked(list::list(&args)),
        Ok(Cli { command: Command::Release(args) }) => asked(release::release(&args)),
        Ok(Cli { command: Command::Stress(args) }) => stress::stress(&args),
        Err(code) => code,
    })
    .into()
}

/// Asks a store something, and says why that failed, and what the library warns of; returns the
/// code to exit with.
fn asked(question: impl Future<Output = Result<u8, Failure>>) -> u8 {
    let _printer = warnings::say(false);
    limits::check().and_then(|()| tenure::block_on(question)).unwrap_or_else(|failure| {
        output::complain(failure.message);
        failure.code
    })
}
