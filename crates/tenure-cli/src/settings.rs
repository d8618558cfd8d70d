//! `tenure config`: the settings of the configuration files and the environment, and their sources.

use clap::{Arg, Command, CommandFactory};
use serde_json::{Value, json};

use crate::cli::{self, Cli};
use crate::config::{self, VERBS, flags, origin};
use crate::exit::Failure;
use crate::output::{self, Line, Voice};
use crate::{asked, store};

/// An effective value, and where it comes from.
struct Effective {
    verb: Option<&'static str>,
    key: String,
    value: Option<String>,
    origin: String,
}

/// Prints the values that apply without flags; returns the exit code.
pub(crate) fn show(args: &cli::Config) -> u8 {
    let told = effective().and_then(|all| {
        let text = if args.json { as_json(&all) } else { as_toml(&all) };
        output::print(text).map(|()| 0)
    });
    asked::code(told, Voice::LOUD)
}

fn effective() -> Result<Vec<Effective>, Failure> {
    let config = config::config();
    let definition = Cli::command();
    let named = store::named(&cli::Store::default())?;
    // Errors in the URL are reported by the verbs that use it.
    let shown = store::shown(&named.url()?);
    let mut all =
        vec![Effective { verb: None, key: "store".into(), value: Some(shown), origin: named.origin }];
    let told = |verb: Option<&'static str>, flag: &Arg| {
        let key = flag.get_long()?.to_owned();
        let set = config.flag(verb.unwrap_or("run"), &key);
        let default = flag.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let (value, origin) = match set {
            Some((setting, path)) => (Some(setting.value.clone()), origin(path, setting.line)),
            None => (default, "default".to_owned()),
        };
        Some(Effective { verb, key, value, origin })
    };
    let run = definition.find_subcommand("run").into_iter().flat_map(Command::get_arguments);
    all.extend(run.filter(|flag| flag.get_long() == Some("prefix")).filter_map(|flag| told(None, flag)));
    for verb in VERBS {
        all.extend(flags(&definition, verb).into_iter().filter_map(|flag| told(Some(verb), flag)));
    }
    Ok(all)
}

fn as_toml(all: &[Effective]) -> String {
    let mut text = String::new();
    for file in &config::config().files {
        let state = if file.settings.is_some() { "read" } else { "not there" };
        text.push_str(&format!("# {}: {state}\n", Line(&file.path.to_string_lossy())));
    }
    let mut verb = None;
    for one in all {
        if one.verb != verb {
            text.push_str(&format!("\n[{}]\n", one.verb.unwrap_or_default()));
            verb = one.verb;
        }
        let line = match &one.value {
            Some(value) => format!("{} = {}", one.key, Value::from(value.as_str())),
            None => format!("# {} is not set", one.key),
        };
        text.push_str(&match &one.value {
            Some(_) => format!("{line:40} # {}\n", Line(&one.origin)),
            None => format!("{line}\n"),
        });
    }
    text
}

fn as_json(all: &[Effective]) -> String {
    let settings = all.iter().map(|one| {
        let from = one.value.as_ref().map(|_| &one.origin);
        json!({ "verb": one.verb, "key": one.key, "value": one.value, "from": from })
    });
    let files = config::config()
        .files
        .iter()
        .map(|file| json!({ "path": file.path.to_string_lossy(), "is_there": file.settings.is_some() }));
    let object = json!({ "files": files.collect::<Vec<_>>(), "settings": settings.collect::<Vec<_>>() });
    format!("{object}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{Config, ConfigFile, KEYS, settings};

    #[test]
    fn the_file_of_the_user_wins_over_that_of_the_system_and_a_table_over_the_top() {
        let file = |path: &str, text: &str| ConfigFile {
            path: path.into(),
            settings: Some(settings(text, &Cli::command()).expect("settings")),
        };
        let user = file("u", "ttl = 1\nstore-file = \"f\"\n[elect]\nttl = 2");
        let system = file("s", "store = \"redis://h\"\nprefix = \"p\"\n[run]\nttl = 3\ngrace = 4");
        let config = Config { files: vec![user, system], given: None };
        for (verb, key, expected) in [
            ("run", "ttl", Some("1")),
            ("elect", "ttl", Some("2")),
            ("run", "grace", Some("4")),
            ("list", "prefix", Some("p")),
            ("stress", "ttl", None),
            ("elect", "grace", None),
        ] {
            let found = config.flag(verb, key).map(|(setting, _)| setting.value.as_str());
            assert_eq!(found, expected, "{verb} {key}");
        }
        let (store, file) = config.store().expect("a store");
        assert_eq!((store.key.as_str(), file.to_str()), ("store-file", Some("u")));
    }

    #[test]
    fn every_key_of_a_file_is_a_flag_of_its_verb() {
        let definition = Cli::command();
        let all: BTreeSet<_> =
            VERBS.iter().flat_map(|verb| flags(&definition, verb)).filter_map(Arg::get_long).collect();
        assert_eq!(all, KEYS.into_iter().collect());
    }
}
