//! `tenure`: runs a program under a distributed lock, acquires and releases locks for scripts, shows holders,
//! and tests a store.

mod acquire;
mod ancestors;
mod asked;
mod bench;
mod child;
mod cli;
mod clock;
mod command_line;
mod config;
mod deadline;
mod descriptor;
mod doctor;
mod duration;
mod elect;
mod exit;
mod fence;
mod held;
mod jobs;
mod json;
mod keep;
mod kind;
mod launch;
mod limits;
mod list;
mod look;
mod manual;
mod observed;
mod output;
mod pages;
mod planted;
mod platform;
mod printer;
mod process_group;
mod reaper;
mod release;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod settings;
mod signals;
mod stages;
mod status;
mod stop;
mod store;
mod stress;
mod table;
mod take;
mod terminal;
mod top;
mod uses;
mod version;
mod versions;
mod wait;
mod waiting;
mod wanted;
mod warnings;
mod watch;
mod watchdog;
mod work;

use std::process::ExitCode;

use cli::{Cli, Command};
use output::Voice;

fn main() -> ExitCode {
    if let Some(code) = stages::stage(std::env::args_os()) {
        return code.into();
    }
    limits::or_panic_in_one_line(|| match command_line::read() {
        Ok(Cli { command: Command::Run(args), .. }) => run::run(&args),
        Ok(Cli { command: Command::Acquire(args), .. }) => acquire::acquire(&args),
        Ok(Cli { command: Command::Renew(args), .. }) => asked::run(Voice::LOUD, acquire::renew(&args)),
        Ok(Cli { command: Command::Verify(args), .. }) => asked::run(Voice::LOUD, acquire::verify(&args)),
        Ok(Cli { command: Command::Elect(args), .. }) => {
            let voice = args.output.voice();
            asked::run(voice, elect::elect(&args, voice))
        }
        Ok(Cli { command: Command::Leader(args), .. }) => asked::run(Voice::LOUD, elect::leader(&args)),
        Ok(Cli { command: Command::Wait(args), .. }) => asked::run(Voice::LOUD, wait::wait(&args)),
        Ok(Cli { command: Command::Status(args), .. }) => asked::run(Voice::LOUD, status::status(&args)),
        Ok(Cli { command: Command::List(args), .. }) => asked::run(Voice::LOUD, list::list(&args)),
        Ok(Cli { command: Command::Jobs(args), .. }) => asked::run(Voice::LOUD, jobs::jobs(&args)),
        Ok(Cli { command: Command::Top(args), .. }) => asked::run(Voice::LOUD, top::top(&args)),
        Ok(Cli { command: Command::Release(args), .. }) => asked::run(Voice::LOUD, release::release(&args)),
        Ok(Cli { command: Command::Stop(args), .. }) => asked::run(Voice::LOUD, stop::stop(&args)),
        Ok(Cli { command: Command::Doctor(args), .. }) => asked::run(Voice::LOUD, doctor::doctor(&args)),
        Ok(Cli { command: Command::Bench(args), .. }) => bench::bench(&args),
        #[cfg(feature = "serve")]
        Ok(Cli { command: Command::Serve(args), .. }) => asked::run(Voice::LOUD, serve::serve(&args)),
        Ok(Cli { command: Command::Stress(args), .. }) => stress::stress(&args),
        Ok(Cli { command: Command::Fence(args), .. }) => fence::fence(&args),
        Ok(Cli { command: Command::Config(args), .. }) => settings::show(&args),
        Ok(Cli { command: Command::Completions(args), .. }) => pages::completions(&args),
        Ok(Cli { command: Command::Man(args), .. }) => pages::man(&args),
        Err(code) => code,
    })
    .into()
}
