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
    limits::or_panic_in_one_line(|| match Cli::read() {
        Ok(Cli { command: Command::Run(args) }) => run::run(&args),
        Ok(Cli { command: Command::Status(args) }) => exit::of(status::status(&args)),
        Ok(Cli { command: Command::List(args) }) => exit::of(list::list(&args)),
        Ok(Cli { command: Command::Release(args) }) => exit::of(release::release(&args)),
        Ok(Cli { command: Command::Stress(args) }) => stress::stress(&args),
        Err(code) => code,
    })
    .into()
}
