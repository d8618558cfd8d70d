//! Checks the user's permissions: each is tried with a name that no lock has, and no trial writes.

use tenure::Error;
use tenure::diagnosis::{ConsoleReply, LockKeys, Namespace, Topology};

use super::Setup;
use super::report::Report;
use super::server::Server;

/// The permissions for one purpose, as in `book/operate/rights.md`.
struct Line {
    name: &'static str,
    /// What is refused without them. `None` makes a missing permission a note instead of a finding.
    costs: Option<&'static str>,
    /// Each permission with the command that tries it: `K` is a lock's key, `F` its counter, `B` its ballot, `E`
    /// the epoch, `C` its channel, `R` that of a reentrant mutex, `A` that of `acks`. The arguments make the
    /// command fail or change nothing, after the server has checked permissions.
    tries: &'static [(&'static str, &'static str)],
}

const NO_SCRIPT: &str = "EVALSHA 0000000000000000000000000000000000000000 1 K";
const LOCK: &str = "without them no lock is granted";

const ALWAYS: Line = Line {
    name: "always",
    costs: Some(LOCK),
    tries: &[("+ping", "PING"), ("key", "PTTL K"), ("fence", "GET F")],
};
const MUTEX: Line = Line {
    name: "mutex",
    costs: Some(LOCK),
    tries: &[
        ("+get", "GET K"),
        ("+set", "SET K x XX"),
        ("+del", "DEL K"),
        ("+pttl", "PTTL K"),
        ("+pexpire", "PEXPIRE K 1"),
        ("+time", "TIME"),
    ],
};
const WAKE: Line = Line {
    name: "wake",
    costs: Some("without them waiters receive no messages, and poll once a second"),
    tries: &[("+publish", "PUBLISH C x"), ("+subscribe", "SUBSCRIBE C"), ("+unsubscribe", "UNSUBSCRIBE C")],
};
const OLD: Line = Line {
    name: "old",
    costs: Some("without them a request that was lost with its connection may be carried out late"),
    tries: &[
        ("+client|setname", "CLIENT SETNAME tenure"),
        ("+client|info", "CLIENT INFO"),
        // No connection has this id.
        ("+client|kill", "CLIENT KILL ID 9223372036854775807"),
    ],
};
const REENTRANT: Line = Line {
    name: "reentrant",
    costs: None,
    tries: &[
        ("+hmget", "HMGET K x"),
        // One argument too many; the server checks permissions before it counts arguments.
        ("+hset", "HSET K x x x"),
        ("+hdel", "HDEL K x"),
        ("+hgetall", "HGETALL K"),
        ("+publish", "PUBLISH R x"),
    ],
};
const QUEUE: Line = Line {
    name: "queue",
    costs: None,
    tries: &[
        ("+pexpireat", "PEXPIREAT K 1"),
        ("+zadd", "ZADD K XX 1 x"),
        ("+zcard", "ZCARD K"),
        ("+zcount", "ZCOUNT K 0 1"),
        ("+zmscore", "ZMSCORE K x"),
        ("+zrange", "ZRANGE K 0 0"),
        ("+zrem", "ZREM K x"),
        ("+zscore", "ZSCORE K x"),
    ],
};
const OTHERS: Line = Line {
    name: "others",
    costs: None,
    tries: &[
        ("+type", "TYPE K"),
        ("+getrange", "GETRANGE K 0 0"),
        ("+hget", "HGET K x"),
        ("+hlen", "HLEN K"),
        ("+hkeys", "HKEYS K"),
        ("+zrange", "ZRANGE K 0 0"),
        ("+unlink", "UNLINK K"),
    ],
};
const LIST: Line = Line {
    name: "list",
    costs: None,
    tries: &[("+scan", "SCAN 0 COUNT 1"), ("+getrange", "GETRANGE K 0 0"), ("+hlen", "HLEN K")],
};
const WAITS: Line = Line { name: "waits", costs: None, tries: &[("+pubsub|numsub", "PUBSUB NUMSUB C")] };
const ACKS: Line = Line {
    name: "acks",
    costs: Some("without them no lock is granted with `acks`"),
    tries: &[("+wait", "WAIT 0 1"), ("+publish", "PUBLISH A x")],
};
const GRACE: Line = Line {
    name: "restart-grace",
    costs: Some("without them no lock is granted with `restart-grace`"),
    tries: &[("epoch", "GET E"), ("+info", "INFO replication")],
};
const SENTINEL: Line = Line {
    name: "sentinel",
    costs: Some("without them no server is accepted as the master"),
    tries: &[("+role", "ROLE")],
};
const QUORUM: Line = Line {
    name: "quorum",
    costs: Some("without them the server never votes"),
    tries: &[("+info", "INFO server"), ("ballot", "GET B")],
};
const CLUSTER: Line = Line {
    name: "cluster",
    costs: Some("without them locks, or messages about them, are not found after a slot has moved"),
    tries: &[
        ("+cluster|slots", "CLUSTER SLOTS"),
        ("+cluster|info", "CLUSTER INFO"),
        ("+pubsub|shardnumsub", "PUBSUB SHARDNUMSUB C"),
        ("+asking", "ASKING"),
        ("+spublish", "SPUBLISH C x"),
        ("+ssubscribe", "SSUBSCRIBE C"),
        ("+sunsubscribe", "SUNSUBSCRIBE C"),
    ],
};

/// Tries all permissions that locks on this store need.
pub(super) async fn check(
    server: &mut Server,
    setup: &Setup,
    user: Option<&str>,
    report: &mut Report,
) -> Result<(), Error> {
    let user = match server.ask(&["ACL", "WHOAMI"]).await? {
        ConsoleReply::Text(user) => user,
        _ => user.unwrap_or("default").to_owned(),
    };
    scripts(server, setup, &user, report).await?;
    let mut lines = vec![&ALWAYS, &MUTEX, &WAKE, &OLD];
    lines.extend((setup.acks > 0).then_some(&ACKS));
    lines.extend(setup.restart_grace.map(|_| &GRACE));
    match setup.topology {
        Topology::Server(_) => {}
        Topology::Sentinel(_) => lines.push(&SENTINEL),
        Topology::Cluster(_) => lines.push(&CLUSTER),
        Topology::Quorum(_) => lines.push(&QUORUM),
    }
    // Last, because a quorum supports mutexes only.
    if !setup.is_quorum() {
        lines.extend([&REENTRANT, &QUEUE]);
    }
    lines.extend([&OTHERS, &LIST]);
    lines.extend(matches!(setup.topology, Topology::Server(_) | Topology::Sentinel(_)).then_some(&WAITS));
    let mut lacks_keys = false;
    for line in lines {
        let missing = missing(line, server, setup).await?;
        if missing.is_empty() {
            continue;
        }
        lacks_keys |= missing.iter().any(|rule| rule.starts_with('~'));
        let rule = format!("ACL SETUSER {user} {}", missing.join(" "));
        match line.costs {
            Some(why) => report.find(
                "rights",
                &server.at,
                format!("user {user} lacks rights of the line `{}`: {}", line.name, missing.join(" ")),
                why,
                rule,
            ),
            None => report.note(
                "rights",
                &server.at,
                format!("user {user} lacks rights of the line `{}`; to grant them: {rule}", line.name),
            ),
        }
    }
    if lacks_keys && setup.namespace == Namespace::default() {
        let begin = if setup.prefix.is_empty() { "TEXT" } else { &setup.prefix };
        let what = format!(
            "where user {user} is to have ~{begin}* and &{begin}* alone, ?namespace={begin} in the URL of all clients, \
             instead of a prefix, keeps everything there"
        );
        report.note("rights", &server.at, what);
    }
    Ok(())
}

/// Checks whether scripts run at all.
async fn scripts(server: &mut Server, setup: &Setup, user: &str, report: &mut Report) -> Result<(), Error> {
    for command in [NO_SCRIPT, "EVAL return(1) 1 K"] {
        let reply = attempt(server, command, setup).await?;
        let ConsoleReply::Error(error) = reply else { continue };
        let is_forbidden = refuses_the_command(&error);
        if is_forbidden || error.contains("unknown command") {
            report.find(
                "scripts",
                &server.at,
                format!("the server runs no scripts for user {user}: {error}"),
                "only mutexes without a token are possible, with `unfenced`",
                match is_forbidden {
                    true => format!("ACL SETUSER {user} +evalsha +eval"),
                    false => "undo rename-command for EVAL and EVALSHA, or use a server with scripts".into(),
                },
            );
            return Ok(());
        }
    }
    Ok(())
}

/// The ACL rules that the user lacks, without duplicates.
async fn missing(line: &Line, server: &mut Server, setup: &Setup) -> Result<Vec<String>, Error> {
    let mut missing: Vec<String> = Vec::new();
    for (right, command) in line.tries {
        let reply = attempt(server, command, setup).await?;
        let ConsoleReply::Error(error) = reply else { continue };
        let (namespace, prefix) = (setup.namespace.as_str(), &setup.prefix);
        let rule = if refuses_the_command(&error) {
            match *right {
                "key" => "+pttl",
                "fence" | "ballot" | "epoch" => "+get",
                right => right,
            }
            .to_owned()
        } else if !error.starts_with("NOPERM") {
            continue;
        } else if error.contains("channel") {
            if !namespace.is_empty() {
                format!("&{namespace}*")
            } else if command.contains(" A ") {
                "&tenure:wake:acks".to_owned()
            } else if command.contains(" R ") {
                format!("&redisson_lock__channel:?{prefix}*")
            } else {
                format!("&tenure:wake:{}:?{prefix}*", server.db)
            }
        } else {
            match *right {
                _ if !namespace.is_empty() => format!("~{namespace}*"),
                "fence" if server.is_in_cluster() => "~tenure:fence:*".to_owned(),
                "fence" => "~tenure:fence".to_owned(),
                "ballot" => format!("~tenure:ballot:?{prefix}*"),
                "epoch" => "~tenure:epoch".to_owned(),
                _ => format!("~{prefix}*"),
            }
        };
        if !missing.contains(&rule) {
            missing.push(rule);
        }
    }
    Ok(missing)
}

/// Whether the error is about the command, as opposed to a key or a channel.
fn refuses_the_command(error: &str) -> bool {
    error.starts_with("NOPERM") && error.contains("command")
}

async fn attempt(server: &mut Server, command: &str, setup: &Setup) -> Result<ConsoleReply, Error> {
    let keys = LockKeys::new(&setup.namespace, server.db, &setup.trial, server.is_in_cluster());
    let words = command.split(' ').map(|word| match word {
        "K" => keys.lock.clone(),
        "F" => keys.fence(),
        "B" => keys.ballot(),
        "E" => keys.epoch(),
        "C" => keys.wake(),
        "R" => keys.wake_reentrant(),
        "A" => keys.acks(),
        word => word.to_owned(),
    });
    let words: Vec<String> = words.collect();
    server.ask(&words.iter().map(String::as_str).collect::<Vec<_>>()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_right_of_the_page_is_tried() {
        let page = include_str!("../../../../book/operate/rights.md");
        let (_, rest) = page.split_once("```acl\n").expect("a list of rights");
        let (page, _) = rest.split_once("```").expect("its end");
        let lines = [
            &ALWAYS, &MUTEX, &WAKE, &OLD, &REENTRANT, &QUEUE, &OTHERS, &LIST, &WAITS, &SENTINEL, &QUORUM,
            &CLUSTER,
        ];
        // `scripts` tries the first two, and every user is tried for the others.
        let elsewhere = ["+evalsha", "+eval"].into_iter();
        let always: Vec<_> = elsewhere.chain(MUTEX.tries.iter().map(|(right, _)| *right)).collect();
        for line in lines {
            let named = page.lines().find_map(|row| row.strip_prefix(line.name)?.strip_prefix(' '));
            for right in named.expect(line.name).split_whitespace().filter(|right| right.starts_with('+')) {
                let is_tried = line.tries.iter().any(|(known, _)| *known == right);
                assert!(is_tried || always.contains(&right), "{}: {right}", line.name);
            }
        }
    }
}
