//! What a URL leaves out, as `mysql` would find it: in the section `[client]` of `~/.my.cnf`, and in `MYSQL_PWD`.

use std::collections::BTreeMap;
use std::env;
use std::fs;

/// The surroundings of a program, which fill the gaps of a URL.
#[derive(Default)]
pub(super) struct MysqlGaps(BTreeMap<String, String>);

impl MysqlGaps {
    /// Those of this process.
    pub(super) fn of_process() -> Self {
        let file = env::home_dir().map(|home| home.join(".my.cnf"));
        let text = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let mut gaps = Self::of(&text);
        if let Some(password) = env::var("MYSQL_PWD").ok().filter(|password| !password.is_empty()) {
            gaps.0.entry("password".to_owned()).or_insert(password);
        }
        gaps
    }

    /// Those of the text of an option file.
    pub(super) fn of(text: &str) -> Self {
        let lines = text.lines().map(str::trim).skip_while(|line| *line != "[client]").skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        let options = lines.filter(|line| !line.starts_with(['#', ';', '!'])).filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            Some((name.trim().replace('_', "-"), unquoted(value.trim())))
        });
        Self(options.collect())
    }

    /// The value of a parameter, by our name, that the URL leaves out.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let name = match key {
            "sslmode" => "ssl-mode",
            "ca" => "ssl-ca",
            "cert" => "ssl-cert",
            "key" => "ssl-key",
            "server-public-key" => "server-public-key-path",
            key => key,
        };
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }
}

/// A value without its quotes, and without a comment after it.
fn unquoted(value: &str) -> String {
    let quote = value.chars().next().filter(|char| ['"', '\''].contains(char));
    match quote.and_then(|quote| value[1..].split_once(quote)) {
        Some((quoted, _)) => quoted.to_owned(),
        None => value.split(" #").next().unwrap_or_default().trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_of_all_clients_counts() {
        let text = "[mysqld]\nuser=no\n[client]\n# why\nuser = me # mine\npassword=\"a #b\"\nssl_ca=/ca\n\
                    host=\n[mysql]\nuser=no\n";
        let gaps = MysqlGaps::of(text);
        assert_eq!(gaps.get("user").as_deref(), Some("me"));
        assert_eq!(gaps.get("password").as_deref(), Some("a #b"));
        assert_eq!((gaps.get("ca").as_deref(), gaps.get("host")), (Some("/ca"), None));
    }
}
