//! Classifies server errors.
//!
//! An error is an answer: the request was not carried out. A script fails before it changes anything that
//! matters (at worst a token is lost), and a failing PUBLISH does not fail the script. What remains to decide
//! is whether a retry can help, and whether it needs another connection.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use crate::resp::ServerError;
use tenure_core::store::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// Transient: retry.
    AskAgain,
    /// Transient, but possibly not on this server, because the address may lead to another one by now: retry
    /// on a new connection.
    AskElsewhere,
    /// Transient: the server has no room for another connection.
    Full,
    /// Permanent: a retry would be refused as well.
    Refused,
}

use Means::{AskAgain, AskElsewhere, Full, Refused};

/// Error code, a required part of the text where the code is not enough, and the meaning. The first matching
/// row counts.
const TABLE: &[(&str, &str, Means)] = &[
    // The server is starting and loads its data.
    ("LOADING", "", AskAgain),
    // Another client's script has run for too long.
    ("BUSY", "", AskAgain),
    // A replica without its master that may not serve stale data.
    ("MASTERDOWN", "", AskElsewhere),
    // A replica, or a master that was demoted.
    ("READONLY", "", AskElsewhere),
    // Redis 6 wraps errors inside a script.
    ("ERR", "-READONLY", AskElsewhere),
    ("ERR", "-MASTERDOWN", AskElsewhere),
    // Fewer replicas are connected than `min-replicas-to-write` demands.
    ("NOREPLICAS", "", AskAgain),
    ("ERR", "-NOREPLICAS", AskAgain),
    // A cluster during an election or a slot migration.
    ("CLUSTERDOWN", "", AskAgain),
    ("TRYAGAIN", "", AskAgain),
    // Sent instead of a reply to the first command, before the server closes the connection.
    ("ERR", "max number of clients", Full),
    // The script was stopped by SCRIPT KILL, which works only before its first write.
    ("ERR", "Script killed by user", AskAgain),
    // A cluster node was used like a standalone server.
    ("MOVED", "", Refused),
    ("ASK", "", Refused),
    ("CROSSSLOT", "", Refused),
    // Authentication or permissions.
    ("NOAUTH", "", Refused),
    ("WRONGPASS", "", Refused),
    ("NOPERM", "", Refused),
    ("DENIED", "", Refused),
    ("ERR", "can't run this command", Refused),
    ("ERR", "without any password configured", Refused),
    ("ERR", "invalid password", Refused),
    // Out of memory or unable to persist: this lasts until an operator acts, so the caller should learn of it
    // at once.
    ("OOM", "", Refused),
    ("ERR", "-OOM", Refused),
    ("MISCONF", "", Refused),
    ("ERR", "-MISCONF", Refused),
    // The counter's key holds another type.
    ("WRONGTYPE", "", Refused),
    ("ERR", "-WRONGTYPE", Refused),
    // A server that is too old, or a proxy that passes only some commands.
    ("NOPROTO", "", Refused),
    ("ERR", "unknown command", Refused),
    ("ERR", "DB index is out of range", Refused),
];

/// The failure for an error, and whether to drop the connection.
pub(crate) fn of(error: &ServerError) -> (Failure, bool) {
    let text = error.to_string();
    let means = meaning(error.code(), &text);
    let hint = hint(error.code(), &text);
    let cause = Arc::new(ServerMessage { error: error.clone(), hint });
    match means {
        AskAgain => (Failure::NotSent(cause), false),
        AskElsewhere => (Failure::NotSent(cause), true),
        Full => (Failure::full(text), false),
        Refused => (Failure::Refused(cause), false),
    }
}

fn meaning(code: &str, text: &str) -> Means {
    // A retry of an unknown error would most likely fail the same way.
    row(code, text).map_or(Refused, |row| TABLE[row].2)
}

/// The first matching row of the table.
fn row(code: &str, text: &str) -> Option<usize> {
    TABLE.iter().position(|(row, part, _)| *row == code && text.contains(part))
}

/// A hint for errors whose text does not explain the cause.
fn hint(code: &str, text: &str) -> Option<&'static str> {
    match code {
        "MOVED" | "ASK" | "CROSSSLOT" => Some("this server is part of a cluster"),
        "NOPROTO" => Some("Redis 6.2 or Valkey 7.2 is needed"),
        "ERR" if text.contains("unknown command") && text.contains("HELLO") => {
            Some("Redis 6.2 or Valkey 7.2 is needed")
        }
        "WRONGTYPE" => Some("the key of the token counter holds something else"),
        _ => None,
    }
}

/// A server error as the cause of a failure.
#[derive(Debug)]
struct ServerMessage {
    error: ServerError,
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

/// The server error that caused a failure, if one did.
pub(crate) fn said_in(failure: &Failure) -> Option<&ServerError> {
    failure.why().downcast_ref::<ServerMessage>().map(|said| &said.error)
}

/// Whether the server forbids EVAL and EVALSHA or does not know them. Errors of commands inside a script do
/// not count.
pub(crate) fn forbids_scripts(failure: &Failure) -> bool {
    let Some(error) = said_in(failure) else { return false };
    let text = error.details().unwrap_or_default().to_ascii_lowercase();
    match error.code() {
        "NOPERM" => text.contains("'eval'") || text.contains("'evalsha'"),
        "ERR" => text.contains("unknown command") && text.contains("eval"),
        _ => false,
    }
}

/// Whether the server does not have the script cached.
pub(crate) fn is_no_script(error: &ServerError) -> bool {
    error.code() == "NOSCRIPT"
}

/// Whether the system could not dial: connection refused, or the host does not resolve.
pub(crate) fn is_of_dial(failure: &Failure) -> bool {
    matches!(failure, Failure::NotSent(cause) if cause.is::<io::Error>() || cause.is::<Undialled>())
}

/// The dial failures of several servers, as one text.
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

    // Verbatim from Redis 5, 6.2, 7.0 and 8, and Valkey 8.
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
    /// Matched by no row.
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
