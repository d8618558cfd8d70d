//! `tenure completions` and `tenure man`: generated from the command line definition.

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::asked;
use crate::cli::{self, Cli};
use crate::exit;
use crate::output;

/// Prints the completions for a shell; returns the exit code.
pub(crate) fn completions(args: &cli::Completions) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenure", &mut text);
    printed(&text)
}

/// Prints a manual page; returns the exit code.
pub(crate) fn man(args: &cli::Man) -> u8 {
    let mut command = Cli::command().after_help(None::<&str>).subcommand_required(false);
    command.build();
    let page = match &args.verb {
        None => command,
        Some(verb) => match command.find_subcommand(verb) {
            Some(found) => found.clone(),
            None => {
                let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
                output::complain(format_args!("unknown verb {verb:?}, expected one of {}", names.join(", ")));
                return exit::USAGE;
            }
        },
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text).expect("memory takes what is written");
    printed(&text)
}

fn printed(text: &[u8]) -> u8 {
    asked::nothing_but(String::from_utf8_lossy(text))
}
