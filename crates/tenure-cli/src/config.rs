//! `tenure.toml`: what the command line need not say. It is read before the command line, whose
//! flags and the environment win.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{Arg, Command};
use serde_json::{Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::cli::{self, Cli};
use crate::exit::{Failure, USAGE};
use crate::output::{self, Line};
use crate::store;

/// Where every user's settings are.
const SYSTEM: &str = "/etc/tenure.toml";
/// What stands before the tables.
const TOP: [&str; 4] = ["store", "store-file", "prefix", "ttl"];
/// The verbs that have a table.
const VERBS: [&str; 6] = ["run", "acquire", "renew", "elect", "doctor", "bench"];
/// What a table may have, if its verb has a flag of this name.
const KEYS: [&str; 11] = [
    "ttl",
    "grace",
    "on-lost",
    "kill-after",
    "wait",
    "busy-code",
    "max-hold",
    "splay",
    "acks",
    "restart-grace",
    "verbose",
];

/// What the files say, that of the user first.
#[derive(Debug, Default)]
pub(crate) struct Config {
    files: Vec<ConfigFile>,
}

#[derive(Debug)]
struct ConfigFile {
    path: PathBuf,
    /// `None` if there is no such file.
    settings: Option<Vec<Setting>>,
}

#[derive(Debug)]
struct Setting {
    verb: Option<String>,
    key: String,
    value: String,
    line: usize,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// What was read at the start.
pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(Config::default)
}

/// Reads the files: this one, or those of the user and of the system.
pub(crate) fn read(given: Option<&Path>, definition: &Command) -> Result<(), Failure> {
    let config = match given {
        Some(path) => Config { files: vec![ConfigFile::read(path, definition, true)?] },
        None => {
            let files = user_file(env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME")).into_iter();
            let files = files.chain([PathBuf::from(SYSTEM)]);
            let files: Result<_, Failure> =
                files.map(|path| ConfigFile::read(&path, definition, false)).collect();
            Config { files: files? }
        }
    };
    let _ = CONFIG.set(config);
    Ok(())
}

/// As the XDG base directory specification finds it.
fn user_file(config: Option<std::ffi::OsString>, home: Option<std::ffi::OsString>) -> Option<PathBuf> {
    let absolute = |path: std::ffi::OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let directory = config.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".config")))?;
    Some(directory.join("tenure.toml"))
}

/// The definition of the command line, with what the files say as its defaults.
pub(crate) fn with_defaults(definition: Command) -> Command {
    let config = config();
    let verbs: Vec<String> = definition.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    verbs.iter().filter(|verb| *verb != cli::KEEP).fold(definition, |definition, verb| {
        definition.mut_subcommand(verb, |command| {
            command.mut_args(|arg| match arg.get_long().and_then(|key| config.flag(verb, key)) {
                Some((setting, _)) => arg.default_value(setting.value.clone()),
                None => arg,
            })
        })
    })
}

impl Config {
    /// What is set for a flag of a verb, and in which file.
    fn flag(&self, verb: &str, key: &str) -> Option<(&Setting, &Path)> {
        let has_table = VERBS.contains(&verb) && KEYS.contains(&key);
        let at_top = key == "prefix" || key == "ttl" && has_table;
        self.files.iter().find_map(|file| {
            let own = if has_table { file.get(Some(verb), key) } else { None };
            let found = own.or_else(|| if at_top { file.get(None, key) } else { None })?;
            Some((found, file.path.as_path()))
        })
    }

    /// The store: its URL, or the file that has it, and where that is said.
    pub(crate) fn store(&self) -> Option<store::Named> {
        self.files.iter().find_map(|file| {
            let origin = |setting: &Setting| Line(&origin(&file.path, setting.line)).to_string();
            let url = file
                .get(None, "store")
                .map(|url| store::Named { is: store::Is::Url(url.value.clone()), origin: origin(url) });
            url.or_else(|| {
                let path = file.get(None, "store-file")?;
                let is = store::Is::File(PathBuf::from(&path.value));
                Some(store::Named { is, origin: origin(path) })
            })
        })
    }
}

fn origin(path: &Path, line: usize) -> String {
    format!("{}, line {line}", path.display())
}

impl ConfigFile {
    fn read(path: &Path, definition: &Command, must_exist: bool) -> Result<Self, Failure> {
        let wrong = |why: String| Failure {
            code: USAGE,
            message: format!("configuration file {}: {why}", path.display()),
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => {
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

/// Reads a file. An error names the line.
fn settings(text: &str, definition: &Command) -> Result<Vec<Setting>, String> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        format!("line {}: {}", line(at), error.message().replace('\n', ", "))
    })?;
    let mut settings = Vec::new();
    for (key, value) in table.get_ref() {
        let at = line(key.span().start);
        match value.get_ref() {
            DeValue::Table(table) if VERBS.contains(&key.get_ref().as_ref()) => {
                let verb = key.get_ref().as_ref();
                let flags = flags(definition, verb);
                for (key, value) in table {
                    let known: Vec<_> = flags.iter().filter_map(|flag| flag.get_long()).collect();
                    let at = line(key.span().start);
                    let setting = setting(Some(verb), key, value, &known, at)?;
                    let flag = flags.iter().find(|flag| flag.get_long() == Some(&setting.key));
                    check(flag.copied(), &setting)?;
                    settings.push(setting);
                }
            }
            _ => {
                let known: Vec<_> = TOP.into_iter().chain(VERBS).collect();
                let setting = setting(None, key, value, &known, at)?;
                let flag = flags(definition, "run").into_iter();
                check(flag.into_iter().find(|flag| flag.get_long() == Some(&setting.key)), &setting)?;
                settings.push(setting);
            }
        }
    }
    let has = |key: &str| settings.iter().find(|setting| setting.verb.is_none() && setting.key == key);
    match (has("store"), has("store-file")) {
        (Some(_), Some(file)) => Err(format!("line {}: `store` and `store-file` are both set", file.line)),
        _ => Ok(settings),
    }
}

/// Those of its flags that a file may set.
fn flags<'a>(definition: &'a Command, verb: &str) -> Vec<&'a Arg> {
    let verb = definition.find_subcommand(verb).into_iter();
    let can = |flag: &&Arg| flag.get_long().is_some_and(|long| KEYS.contains(&long));
    verb.flat_map(Command::get_arguments).filter(can).collect()
}

fn setting(
    verb: Option<&str>,
    key: &Spanned<std::borrow::Cow<'_, str>>,
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
        _ => return Err(format!("line {line}: `{key}` must be a text, a number, true or false")),
    };
    Ok(Setting { verb: verb.map(str::to_owned), key: key.to_owned(), value, line })
}

/// Whether the flag of this name takes the value. It says why not as the command line does.
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

/// What is in force, and where each value is from.
struct Effective {
    verb: Option<&'static str>,
    key: String,
    value: Option<String>,
    origin: String,
}

/// Prints what is in force when no flag says otherwise; returns the code to exit with.
pub(crate) fn show(args: &cli::Config) -> u8 {
    let told = effective().and_then(|all| {
        let text = if args.json { as_json(&all) } else { as_toml(&all) };
        output::print_all(text).map_err(|error| Failure::own("cannot print", &error))
    });
    match told {
        Ok(()) => 0,
        Err(failure) => {
            output::complain(failure.message);
            failure.code
        }
    }
}

fn effective() -> Result<Vec<Effective>, Failure> {
    let config = config();
    let definition = <Cli as clap::CommandFactory>::command();
    let named = store::named(&cli::Store::default())?;
    // An error of the URL is told by the verbs that use it.
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
    for file in &config().files {
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
    let files = config()
        .files
        .iter()
        .map(|file| json!({ "path": file.path.to_string_lossy(), "is_there": file.settings.is_some() }));
    let object = json!({ "files": files.collect::<Vec<_>>(), "settings": settings.collect::<Vec<_>>() });
    format!("{object}\n")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<(Option<String>, String, String, usize)>, String> {
        let all = settings(text, &Cli::command())?;
        Ok(all.into_iter().map(|one| (one.verb, one.key, one.value, one.line)).collect())
    }

    #[test]
    fn a_file_has_settings_of_all_verbs_and_of_some() {
        let all = parsed("prefix = \"app:\"\nttl = 30\n[run]\non-lost = \"kill\"\n").expect("settings");
        let run = Some("run".to_owned());
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all.contains(&(None, "ttl".into(), "30".into(), 2)), "{all:?}");
        assert!(all.contains(&(run, "on-lost".into(), "kill".into(), 4)), "{all:?}");
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_line() {
        for (text, says) in [
            ("stoer = \"x\"", ["line 1: unknown key `stoer`", "did you mean `store`?"]),
            ("\n[run]\ngrase = 1", ["line 3: unknown key `grase` in [run]", "`grace`"]),
            ("[rum]", ["line 1: unknown key `rum`", "`run`"]),
            ("[doctor]\ngrace = 1", ["unknown key `grace` in [doctor]", "ttl"]),
            ("ttl = \"soon\"", ["line 1: `ttl`: invalid value 'soon'", "30s"]),
            ("[run]\nbusy-code = 256", ["line 2: `busy-code`", "256"]),
            ("prefix = [1]", ["line 1: `prefix` must be", "text"]),
            ("store = \"a\"\nstore-file = \"b\"", ["line 2", "both set"]),
            ("ttl = ", ["line 1", ""]),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(says.iter().all(|says| error.contains(says)) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn the_file_of_the_user_wins_over_that_of_the_system_and_a_table_over_the_top() {
        let file = |path: &str, text: &str| ConfigFile {
            path: path.into(),
            settings: Some(settings(text, &Cli::command()).expect("settings")),
        };
        let user = file("u", "ttl = 1\nstore-file = \"f\"\n[elect]\nttl = 2");
        let system = file("s", "store = \"redis://h\"\nprefix = \"p\"\n[run]\nttl = 3\ngrace = 4");
        let config = Config { files: vec![user, system] };
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
        assert_eq!(config.store().expect("a store").origin, "u, line 2");
    }

    #[test]
    fn every_key_of_a_file_is_a_flag_of_its_verb() {
        let definition = Cli::command();
        let all: std::collections::BTreeSet<_> =
            VERBS.iter().flat_map(|verb| flags(&definition, verb)).filter_map(Arg::get_long).collect();
        assert_eq!(all, KEYS.into_iter().collect());
    }
}
