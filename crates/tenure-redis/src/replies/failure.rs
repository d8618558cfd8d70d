//! What each error of a server means.
//!
//! An error is an answer: the request was not carried out. A script fails before it changes
//! anything that matters (at worst a token was used up), and its PUBLISH cannot fail it. So what is
//! left to decide is whether asking again can help, and whether to ask on another connection.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use crate::resp::ServerError;
use tenure_core::store::Failure;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// It passes: ask again.
    AskAgain,
    /// It passes, but perhaps not on this server: what the address names may have moved on. Ask
    /// again on a new connection.
    AskElsewhere,
    /// It was refused, and would be again.
    Refused,
}

use Means::{AskAgain, AskElsewhere, Refused};

/// The code of an error, a part of its text where the code is not enough, what it means. The first
/// row that fits counts.
const TABLE: &[(&str, &str, Means)] = &[
    // The server is starting and reads its data.
    ("LOADING", "", AskAgain),
    // Another client's script has run for too long.
    ("BUSY", "", AskAgain),
    // A replica that has lost its master and may not answer from what it has.
    ("MASTERDOWN", "", AskElsewhere),
    // A replica, or a master that was demoted.
    ("READONLY", "", AskElsewhere),
    // Redis 6 wraps an error inside a script.
    ("ERR", "-READONLY", AskElsewhere),
    ("ERR", "-MASTERDOWN", AskElsewhere),
    // Fewer replicas are connected than the master demands before it takes writes.
    ("NOREPLICAS", "", AskAgain),
    ("ERR", "-NOREPLICAS", AskAgain),
    // A cluster that is electing, or moving a slot.
    ("CLUSTERDOWN", "", AskAgain),
    ("TRYAGAIN", "", AskAgain),
    // Said in place of an answer to the first command, before the server hangs up.
    ("ERR", "max number of clients", AskAgain),
    // Our script was stopped by SCRIPT KILL, which is possible only before its first write.
    ("ERR", "Script killed by user", AskAgain),
    // A member of a cluster was asked as if it stood alone.
    ("MOVED", "", Refused),
    ("ASK", "", Refused),
    ("CROSSSLOT", "", Refused),
    // Who we are, or what we may do.
    ("NOAUTH", "", Refused),
    ("WRONGPASS", "", Refused),
    ("NOPERM", "", Refused),
    ("DENIED", "", Refused),
    ("ERR", "can't run this command", Refused),
    ("ERR", "without any password configured", Refused),
    ("ERR", "invalid password", Refused),
    // Full, or unable to save: this lasts until an operator acts, and the caller should hear of it
    // at once.
    ("OOM", "", Refused),
    ("ERR", "-OOM", Refused),
    ("MISCONF", "", Refused),
    ("ERR", "-MISCONF", Refused),
    // The counter's key holds something else.
    ("WRONGTYPE", "", Refused),
    ("ERR", "-WRONGTYPE", Refused),
    // Older than we can speak with, or a proxy that lets only some commands pass.
    ("NOPROTO", "", Refused),
    ("ERR", "unknown command", Refused),
    ("ERR", "DB index is out of range", Refused),
];

/// The failure that an error stands for, and whether to leave the connection.
pub(crate) fn of(error: &ServerError) -> (Failure, bool) {
    let text = error.to_string();
    let means = meaning(error.code(), &text);
    let hint = hint(error.code(), &text);
    let cause = Arc::new(ServerMessage { error: error.clone(), hint });
    match means {
        AskAgain => (Failure::NotSent(cause), false),
        AskElsewhere => (Failure::NotSent(cause), true),
        Refused => (Failure::Refused(cause), false),
    }
}

fn meaning(code: &str, text: &str) -> Means {
    // What is not listed would most likely be said again.
    row(code, text).map_or(Refused, |row| TABLE[row].2)
}

/// The row of the table that counts.
fn row(code: &str, text: &str) -> Option<usize> {
    TABLE.iter().position(|(row, part, _)| *row == code && text.contains(part))
}

/// What to do about it, where the server does not say.
fn hint(code: &str, text: &str) -> Option<&'static str> {
    match code {
        "MOVED" | "ASK" | "CROSSSLOT" => Some("this server is part of a cluster"),
        "NOPROTO" => Some("Redis 6.2 or Valkey 7.2 is needed"),
        "ERR" if text.contains("unknown command") && text.contains("HELLO") => {
            Some("Redis 6.2 or Valkey 7.2 is needed")
        }
        "WRONGTYPE" => Some("the key of the lock's token counter holds something else"),
        _ => None,
    }
}

/// What a server said in place of an answer.
#[derive(Debug)]
struct ServerMessage {
    error: ServerError,
    /// What to do about it, where the server does not say.
    hint: Option<&'static str>,
}

impl fmt::Display for ServerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hint {
            Some(hint) => write!(f, "{} ({hint})", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl Error for ServerMessage {}

/// The error of the server that a failure stands for, if it does for one.
pub(crate) fn said_in(failure: &Failure) -> Option<&ServerError> {
    let (Failure::NotSent(cause) | Failure::Unknown(cause) | Failure::Refused(cause)) = failure;
    cause.downcast_ref::<ServerMessage>().map(|said| &said.error)
}

/// Whether the server forbids scripts, or has none. What a script may not do inside is another
/// matter.
pub(crate) fn forbids_scripts(failure: &Failure) -> bool {
    let Some(error) = said_in(failure) else { return false };
    let text = error.details().unwrap_or_default().to_ascii_lowercase();
    match error.code() {
        "NOPERM" => text.contains("'eval'") || text.contains("'evalsha'"),
        "ERR" => text.contains("unknown command") && text.contains("eval"),
        _ => false,
    }
}

/// The same failure of something that was not sent for that reason.
pub(crate) fn not_sent(failure: Failure) -> Failure {
    match failure {
        Failure::Unknown(cause) => Failure::NotSent(cause),
        failure => failure,
    }
}

/// Whether the server does not know the script that it was asked to run.
pub(crate) fn is_no_script(error: &ServerError) -> bool {
    error.code() == "NOSCRIPT"
}

/// Whether the system could not dial: nothing listens there, or the name has no address.
pub(crate) fn is_of_dial(failure: &Failure) -> bool {
    matches!(failure, Failure::NotSent(cause) if cause.is::<io::Error>() || cause.is::<Undialled>())
}

/// The same of all servers that were to be dialled, as text.
#[derive(Debug)]
pub(crate) struct Undialled(pub(crate) String);

impl fmt::Display for Undialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Undialled {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    // As servers say it: Redis 5, 6.2, 7.0 and 8, Valkey 8.
    const AGAIN: &[&str] = &[
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR Error running script (call to f_59b5): @user_script:68: -NOREPLICAS Not enough good replicas to write.",
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "ERR max number of clients reached",
        "ERR max number of clients + cluster connections reached",
        "ERR Error running script: Script killed by user with SCRIPT KILL... script: 1234",
    ];
    const ELSEWHERE: &[&str] = &[
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "ERR Error running script (call to f_59b5): @user_script:68: -MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "READONLY You can't write against a read only replica.",
        "READONLY You can't write against a read only replica. script: 59b5, on @user_script:68.",
        "ERR Error running script (call to f_59b5): @user_script:68: -READONLY You can't write against a read only replica.",
    ];
    const REFUSED: &[&str] = &[
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOPERM No permissions to access a key",
        "ERR The user executing the script can't run this command or subcommand script: 59b5, on @user_script:68.",
        "ERR AUTH <password> called without any password configured for the default user. Are you sure?",
        "ERR invalid password",
        "DENIED Redis is running in protected mode because protected mode is enabled",
        "OOM command not allowed when used memory > 'maxmemory'. script: 59b5, on @user_script:68.",
        "ERR Error running script (call to f_59b5): @user_script:68: -OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "ERR Error running script (call to f_59b5): @user_script:68: -MISCONF Redis is configured to save RDB snapshots",
        "WRONGTYPE Operation against a key holding the wrong kind of value script: 59b5",
        "ERR Error running script (call to f_59b5): @user_script:68: -WRONGTYPE Operation against a key holding the wrong kind of value",
        "NOPROTO unsupported protocol version",
        "ERR unknown command `HELLO`, with args beginning with: `3`, ",
        "ERR unknown command 'EVALSHA'",
        "ERR DB index is out of range",
        "MOVED 3999 127.0.0.1:6381",
        "ASK 3999 127.0.0.1:6381",
        "CROSSSLOT Keys in request don't hash to the same slot",
    ];
    /// In no row.
    const UNHEARD_OF: &[&str] =
        &["ERR something that no client has seen yet", "NEWCODE something that no client has seen yet"];

    fn error(line: &str) -> ServerError {
        ServerError::new(line)
    }

    fn said(line: &str) -> (Failure, bool) {
        of(&error(line))
    }

    #[test]
    fn what_passes_is_asked_again_and_what_stays_is_refused() {
        for line in AGAIN {
            assert!(matches!(said(line), (Failure::NotSent(_), false)), "{line}");
        }
        for line in ELSEWHERE {
            assert!(matches!(said(line), (Failure::NotSent(_), true)), "{line}");
        }
        for line in [REFUSED, UNHEARD_OF].concat() {
            assert!(matches!(said(line), (Failure::Refused(_), false)), "{line}");
        }
    }

    #[test]
    fn each_row_of_the_table_counts_for_something_that_a_server_says() {
        let row_of = |line: &str| row(error(line).code(), line);
        let said: BTreeSet<usize> = [AGAIN, ELSEWHERE, REFUSED]
            .concat()
            .into_iter()
            .map(|line| row_of(line).unwrap_or_else(|| panic!("in no row: {line}")))
            .collect();
        for (at, row) in TABLE.iter().enumerate() {
            assert!(said.contains(&at), "nothing that is tested is in this row: {row:?}");
        }
        assert!(UNHEARD_OF.iter().all(|line| row_of(line).is_none()));
    }

    #[test]
    fn the_cause_is_what_the_server_said() {
        let (failure, _) = said("OOM command not allowed");
        assert_eq!(failure.to_string(), "refused: OOM command not allowed");
        for (line, hint) in [
            ("MOVED 3999 127.0.0.1:6381", "part of a cluster"),
            ("ASK 3999 127.0.0.1:6381", "part of a cluster"),
            ("CROSSSLOT Keys in request don't hash to the same slot", "part of a cluster"),
            ("NOPROTO unsupported protocol version", "Redis 6.2"),
            ("ERR unknown command `HELLO`, with args beginning with: `3`, ", "Redis 6.2"),
            ("WRONGTYPE Operation against a key", "counter"),
        ] {
            let (failure, _) = said(line);
            assert!(
                failure.to_string().contains(line.trim_end()) && failure.to_string().contains(hint),
                "{failure}"
            );
        }
    }
}
