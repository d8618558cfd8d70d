//! Reads the command line after the configuration files, and reports errors.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use crate::cli::Cli;
use crate::{asked, config, exit, output};

/// Reads the command line. On error, prints one line and returns the exit code.
pub(crate) fn read() -> Result<Cli, u8> {
    let words: Vec<_> = std::env::args_os().collect();
    let definition = Cli::command();
    let parsed = definition.clone().try_get_matches_from(&words).and_then(|matches| {
        // Verbs without a store work with any configuration file.
        if ["completions", "man", "fence"].contains(&matches.subcommand_name().unwrap_or_default()) {
            return Cli::from_arg_matches(&matches);
        }
        let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
        config::read(file, &definition)
            .map_err(|failure| clap::Error::raw(ErrorKind::Io, failure.message))?;
        if config::config().is_empty() {
            return Cli::from_arg_matches(&matches);
        }
        let matches = config::with_defaults(definition).try_get_matches_from(&words)?;
        Cli::from_arg_matches(&matches)
    });
    parsed.map_err(|error| match error.kind() {
        ErrorKind::Io => {
            output::complain(error.to_string().trim_start_matches("error: ").trim_end());
            exit::USAGE
        }
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = error.render();
            let text = if io::stdout().is_terminal() { text.ansi().to_string() } else { text.to_string() };
            asked::nothing_but(wrapped(&text))
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = io::stderr().write_all(wrapped(&error.render().to_string()).as_bytes());
            exit::USAGE
        }
        _ => {
            output::complain(one_line(&error, &std::env::args_os().collect::<Vec<_>>()));
            exit::USAGE
        }
    })
}

/// Width of the help, in columns.
const COLUMNS: usize = 100;

/// Wraps the help at `COLUMNS`. Continuation lines are aligned with the last column of text.
fn wrapped(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut at = 0;
        let indent = indent(line);
        for word in line.split_inclusive(' ') {
            let word_width = width(word.trim_end());
            if at > indent && word_width > 0 && at + word_width > COLUMNS {
                lines.truncate(lines.trim_end_matches(' ').len());
                lines.push('\n');
                lines.push_str(&" ".repeat(indent));
                at = indent;
            }
            lines.push_str(word);
            at += width(word.trim_end_matches('\n'));
        }
    }
    lines
}

/// Where the text of a line begins: after its first gap, as in a list of options, otherwise after its
/// indentation.
fn indent(line: &str) -> usize {
    let margin = line.len() - line.trim_start_matches(' ').len();
    let gap = line[margin..].find("  ").filter(|_| margin > 0).map(|gap| margin + gap);
    let text = gap.map_or(margin, |gap| line.len() - line[gap..].trim_start_matches(' ').len());
    let indent = width(&line[..text]);
    if indent < COLUMNS / 2 { indent } else { margin }
}

/// Display width of a text, without colour sequences.
fn width(text: &str) -> usize {
    let mut is_colour = false;
    let visible = text.chars().filter(|char| {
        let was_colour = is_colour;
        is_colour = *char == '\u{1b}' || is_colour && *char != 'm';
        !is_colour && !was_colour
    });
    visible.count()
}

/// The first paragraph of a clap error: what is wrong, and the suggestion.
fn one_line(error: &clap::Error, words_given: &[OsString]) -> String {
    let text = error.to_string();
    let first = text.strip_prefix("error: ").unwrap_or(&text);
    let words: Vec<&str> = first.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    // Name the verb that was used, if it is known.
    let command = Cli::command();
    let meant = words_given.get(1).and_then(|word| command.find_subcommand(word));
    let meant = meant.map_or_else(String::new, |command| format!(" {}", command.get_name()));
    let similar = place(error, words_given).unwrap_or_else(|| similar(error));
    format!("{}{similar}; `tenure{meant} --help` says more", words.join(" "))
}

/// A hint about a flag of the verbs that was written before the verb.
fn place(error: &clap::Error, words_given: &[OsString]) -> Option<String> {
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else { return None };
    let command = Cli::command();
    let is_verb = |word: &OsString| command.find_subcommand(word).is_some();
    let before = words_given.iter().skip(1).take_while(|word| !is_verb(word));
    let is_before =
        before.into_iter().any(|word| word.to_str().is_some_and(|word| word.starts_with(&**flag)));
    let name = flag.trim_start_matches('-');
    let mut flags = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let is_known = flags.any(|known| known.get_long() == Some(name));
    (is_before && is_known).then(|| "; write it after the verb".to_owned())
}

/// The flag, verb or value that was probably meant.
fn similar(error: &clap::Error) -> String {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let meant = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(word) => Some(word),
        // Sorted by similarity, the most similar last.
        ContextValue::Strings(words) => words.last(),
        _ => None,
    });
    meant.map_or_else(String::new, |meant| format!("; did you mean '{meant}'?"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::{Command, Run};

    fn run(words: &[&str]) -> Run {
        match Cli::try_parse_from(["tenure", "run"].iter().chain(words)) {
            Ok(Cli { command: Command::Run(run), .. }) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_is_wrapped_at_a_hundred_columns_behind_the_gap() {
        let text = format!("  -x, --long  {}\n", "word ".repeat(40).trim_end());
        let lines = wrapped(&text);
        assert!(lines.lines().all(|line| line.len() <= COLUMNS), "{lines}");
        assert!(lines.lines().skip(1).all(|line| line.starts_with("              word")), "{lines}");
        assert_eq!(lines.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        assert_eq!(width("\u{1b}[1mbold\u{1b}[0m"), 4);
        assert_eq!(wrapped("short\n\n  two\n"), "short\n\n  two\n");
    }

    #[test]
    fn of_several_similar_verbs_the_most_similar_is_suggested() {
        for (given, meant) in [("lst", "list"), ("relese", "release"), ("stats", "status"), ("renw", "renew")]
        {
            let words = ["tenure", given].map(OsString::from);
            let error = Cli::try_parse_from(&words).expect_err("no verb");
            let line = one_line(&error, &words);
            assert!(line.contains(&format!("; did you mean '{meant}'?;")), "{given}: {line}");
        }
    }

    #[test]
    fn options_end_at_the_command() {
        let args = run(&["--ttl", "5m", "nightly", "-w", "0.5", "ls", "-n", "--ttl", "x", "--", "-q"]);
        assert_eq!((args.request.name.as_str(), args.request.ttl.as_secs()), ("nightly", 300));
        assert_eq!(args.request.wait, Some(Duration::from_millis(500)));
        assert_eq!(args.job.command, ["ls", "-n", "--ttl", "x", "--", "-q"]);
        assert!(!args.request.no_wait && !args.output.voice().quiet);
    }

    #[test]
    fn two_hyphens_before_the_command_are_not_part_of_it() {
        assert_eq!(run(&["x", "--", "ls", "-l"]).job.command, ["ls", "-l"]);
        assert_eq!(run(&["x", "--", "-odd"]).job.command, ["-odd"]);
        assert_eq!(run(&["--", "-x", "ls", "-l"]).job.command, ["ls", "-l"]);
    }

    #[test]
    fn a_flag_before_its_verb_is_said_to_belong_after_it() {
        let line = |words: &[&str]| {
            let words: Vec<OsString> = ["tenure"].iter().chain(words).map(OsString::from).collect();
            one_line(&Cli::try_parse_from(&words).expect_err("no command"), &words)
        };
        for words in [&["--store", "X", "run", "x", "ls"][..], &["--store=X", "status", "x"]] {
            assert!(line(words).contains("'--store'") && line(words).contains("; write it after the verb;"));
        }
        for words in [&["--frobnicate", "run", "x", "ls"][..], &["run", "--acks-of", "x", "ls"]] {
            assert!(!line(words).contains("after the verb"), "{}", line(words));
        }
    }
}
