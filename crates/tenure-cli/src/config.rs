//! `tenure.toml`: defaults for the command line. Flags and environment variables take precedence.

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{Arg, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::exit::{Failure, USAGE};
use crate::output::Line;

/// System-wide settings.
const SYSTEM: &str = "/etc/tenure.toml";
/// Keys before the tables.
const TOP: [&str; 4] = ["store", "store-file", "prefix", "ttl"];
/// Verbs that have a table.
pub(crate) const VERBS: [&str; 6] = ["run", "acquire", "renew", "elect", "doctor", "bench"];
/// Keys that a table may have, if its verb has a flag of this name.
pub(crate) const KEYS: [&str; 12] = [
    "ttl",
    "grace",
    "on-lost",
    "kill-after",
    "wait",
    "busy-code",
    "max-hold",
    "splay",
    "zone",
    "acks",
    "restart-grace",
    "verbose",
];

/// The configuration files, the user's first.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) files: Vec<ConfigFile>,
    /// The file of --config.
    pub(crate) given: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// `None` if the file does not exist.
    pub(crate) settings: Option<Vec<Setting>>,
}

#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) verb: Option<String>,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) line: usize,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(Config::default)
}

/// Reads the files: `given`, or those of the user and the system.
pub(crate) fn read(given: Option<&Path>, definition: &Command) -> Result<(), Failure> {
    let config = match given {
        Some(path) => {
            let files = vec![ConfigFile::read(path, definition, true)?];
            Config { files, given: Some(path.to_owned()) }
        }
        None => {
            let user = base_directory(env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME"), ".config");
            let user = user.map(|directory| directory.join("tenure.toml"));
            let files = user.into_iter().chain([PathBuf::from(SYSTEM)]);
            let files: Result<_, Failure> =
                files.map(|path| ConfigFile::read(&path, definition, false)).collect();
            Config { files: files?, given: None }
        }
    };
    let _ = CONFIG.set(config);
    Ok(())
}

/// The directory in this variable, or `fallback` in the home directory, according to the XDG base directory
/// specification.
pub(crate) fn base_directory(
    variable: Option<OsString>,
    home: Option<OsString>,
    fallback: &str,
) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    variable.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(fallback)))
}

/// The command line definition, with the files' settings as defaults.
pub(crate) fn with_defaults(definition: Command) -> Command {
    let config = config();
    definition.mut_subcommands(|command| {
        let verb = command.get_name().to_owned();
        command.mut_args(|arg| match arg.get_long().and_then(|key| config.flag(&verb, key)) {
            Some((setting, _)) => arg.default_value(setting.value.clone()),
            None => arg,
        })
    })
}

impl Config {
    /// Whether no file has any settings.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.iter().all(|file| file.settings.as_ref().is_none_or(Vec::is_empty))
    }

    /// The setting for a verb's flag, and the file it is in.
    pub(crate) fn flag(&self, verb: &str, key: &str) -> Option<(&Setting, &Path)> {
        let has_table = VERBS.contains(&verb) && KEYS.contains(&key);
        let at_top = key == "prefix" || key == "ttl" && has_table;
        self.files.iter().find_map(|file| {
            let own = if has_table { file.get(Some(verb), key) } else { None };
            let found = own.or_else(|| if at_top { file.get(None, key) } else { None })?;
            Some((found, file.path.as_path()))
        })
    }

    /// The setting `store` or `store-file`, and the file it is in.
    pub(crate) fn store(&self) -> Option<(&Setting, &Path)> {
        self.files.iter().find_map(|file| {
            let setting = file.get(None, "store").or_else(|| file.get(None, "store-file"))?;
            Some((setting, file.path.as_path()))
        })
    }
}

/// Where a value comes from, for display.
pub(crate) fn origin(path: &Path, line: usize) -> String {
    format!("{}, line {line}", path.display())
}

impl ConfigFile {
    fn read(path: &Path, definition: &Command, must_exist: bool) -> Result<Self, Failure> {
        let wrong =
            |why: String| Failure::new(USAGE, format!("configuration file {}: {why}", path.display()));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
                    && !must_exist =>
            {
                return Ok(Self { path: path.to_owned(), settings: None });
            }
            Err(error) => return Err(wrong(error.to_string())),
        };
        let settings = settings(&text, definition).map_err(wrong)?;
        Ok(Self { path: path.to_owned(), settings: Some(settings) })
    }

    fn get(&self, verb: Option<&str>, key: &str) -> Option<&Setting> {
        let settings = self.settings.iter().flatten();
        settings.into_iter().find(|setting| setting.verb.as_deref() == verb && setting.key == key)
    }
}

/// Parses a file. Errors name the line.
pub(crate) fn settings(text: &str, definition: &Command) -> Result<Vec<Setting>, String> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        format!("line {}: {}", line(at), error.message().replace('\n', ", "))
    })?;
    let mut settings = Vec::new();
    let mut add = |verb: Option<&str>, key: &Spanned<Cow<'_, str>>, value, known: &[&str]| {
        let setting = setting(verb, key, value, known, line(key.span().start))?;
        let flags = flags(definition, verb.unwrap_or("run"));
        check(flags.into_iter().find(|flag| flag.get_long() == Some(&setting.key)), &setting)?;
        settings.push(setting);
        Ok::<_, String>(())
    };
    for (key, value) in table.get_ref() {
        let verb = key.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(table) if VERBS.contains(&verb) => {
                let known: Vec<_> = flags(definition, verb).into_iter().filter_map(Arg::get_long).collect();
                table.iter().try_for_each(|(key, value)| add(Some(verb), key, value, &known))?;
            }
            _ => add(None, key, value, &TOP.into_iter().chain(VERBS).collect::<Vec<_>>())?,
        }
    }
    let has = |key: &str| settings.iter().find(|setting| setting.verb.is_none() && setting.key == key);
    match (has("store"), has("store-file")) {
        (Some(_), Some(file)) => Err(format!("line {}: `store` and `store-file` are both set", file.line)),
        _ => Ok(settings),
    }
}

/// The verb's flags that a file may set.
pub(crate) fn flags<'a>(definition: &'a Command, verb: &str) -> Vec<&'a Arg> {
    let verb = definition.find_subcommand(verb).into_iter();
    let can = |flag: &&Arg| flag.get_long().is_some_and(|long| KEYS.contains(&long));
    verb.flat_map(Command::get_arguments).filter(can).collect()
}

fn setting(
    verb: Option<&str>,
    key: &Spanned<Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    known: &[&str],
    line: usize,
) -> Result<Setting, String> {
    let key = key.get_ref().as_ref();
    if !known.contains(&key) {
        let closeness = |one: &&str| (strsim::jaro_winkler(key, one) * 1_000.0) as u32;
        let closest = known.iter().copied().max_by_key(closeness).filter(|one| closeness(one) > 700);
        let meant = closest.map_or_else(
            || format!("; there are {}", known.join(", ")),
            |closest| format!("; did you mean `{closest}`?"),
        );
        let place = verb.map_or_else(String::new, |verb| format!(" in [{verb}]"));
        return Err(format!("line {line}: unknown key `{}`{place}{meant}", Line(key)));
    }
    let value = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(truth) => truth.to_string(),
        _ => return Err(format!("line {line}: `{key}` must be a string, a number, true or false")),
    };
    Ok(Setting { verb: verb.map(str::to_owned), key: key.to_owned(), value, line })
}

/// Validates a value like the flag of this name on the command line.
fn check(flag: Option<&Arg>, setting: &Setting) -> Result<(), String> {
    let Some(flag) = flag else { return Ok(()) };
    let key = &setting.key;
    let alone = Arg::new("value").long("value").value_parser(flag.get_value_parser().clone());
    let alone = Command::new("tenure").arg(alone.num_args(1).allow_hyphen_values(true));
    match alone.try_get_matches_from(["tenure", "--value", &setting.value]) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let why = first.replace(" for '--value <value>'", "");
            Err(format!("line {}: `{key}`: {why}", setting.line))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manual::CONFIG_MANUAL;

    #[test]
    fn the_manual_and_the_book_list_every_key_and_table() {
        let book = include_str!("../../../book/use/configuration.md");
        let sentence = |words: &[String]| {
            let (last, others) = words.split_last().expect("some words");
            format!("{} and {last}", others.join(", "))
        };
        let keys = sentence(&KEYS.map(str::to_owned));
        let tables = sentence(&VERBS.map(|verb| format!("[{verb}]")));
        for text in [CONFIG_MANUAL, book] {
            let text = text.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&keys) && text.contains(&tables), "{keys}; {tables}: {text}");
        }
    }
}
