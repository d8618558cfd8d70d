//! `tenure`: runs a program under a distributed lock, shows who holds what, and puts a store to the test.

mod child;
mod cli;
mod clock;
mod duration;
mod exit;
mod kind;
mod launch;
mod list;
mod output;
mod printer;
mod run;
mod signals;
mod status;
mod store;
mod stress;
mod terminal;
mod warnings;
mod watch;

use std::process::ExitCode;

use cli::{Cli, Command};

fn main() -> ExitCode {
    if let Some(code) = launch::stage(std::env::args_os()) {
        return code.into();
    }
    let code = match Cli::read() {
        Ok(Cli { command: Command::Run(args) }) => run::run(&args),
        Ok(Cli { command: Command::Status(args) }) => status::status(&args),
        Ok(Cli { command: Command::List(args) }) => list::list(&args),
        Ok(Cli { command: Command::Stress(args) }) => stress::stress(&args),
        Err(code) => code,
    };
    code.into()
}
