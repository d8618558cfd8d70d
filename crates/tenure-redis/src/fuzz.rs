//! Fuzz tests of everything that parses server replies or URLs.

use std::fmt::Debug;
use std::io::Cursor;

use tenure_testkit::fuzz::fuzz;

use crate::messages::meant;
use crate::replies;
use crate::replies::failure;
use crate::requests::keys::{ballot, channel, share_a_slot, slot};
use crate::requests::{Keyspace, Publish};
use crate::resp::Value;
use crate::resp::parse::{Malformed, Parser, Tape};
use crate::topology::sentinel::SentinelResolver;
use crate::topology::slots::{ClusterView, Redirect};
use crate::topology::{Access, Address, Guarantees, Sentinels, Target, Topology};
use tenure_core::name::{LockName, Namespace};
use tenure_core::net::url::{Login, Password};
use tenure_core::owner::Owner;
use tenure_core::protocol::{LockSpec, Notification, Op, QueueSpec, Verb};

/// Owner and request number of the replies in the corpus.
const OWNER: &str = "a@h:1/0123456789abcdef0123456789abcdef";
const REQUEST: u64 = 7;

const RULES: [LockSpec; 4] = [
    LockSpec::Mutex,
    LockSpec::Reentrant,
    LockSpec::Queue(QueueSpec::FAIR),
    LockSpec::Queue(QueueSpec::READER),
];

fn op(spec: LockSpec, verb: Verb) -> Op {
    let (name, owner) = (LockName::new("x").expect("a name"), OWNER.parse().expect("an owner"));
    Op { name, spec, owner, request: REQUEST, verb }
}

/// The variant name of an outcome, without its payload.
fn sort(outcome: &impl Debug) -> String {
    format!("{outcome:?}").chars().take_while(|char| char.is_alphanumeric()).collect()
}

/// Runs every reply parser over a value.
fn read_all(value: &Value) -> String {
    let from = Address::Tcp("h".into(), 1);
    let mut said = sort(value);
    let refresh = Verb::Refresh {
        owners: [OWNER, OWNER].map(|owner| owner.parse().expect("an owner")).into(),
        wait_ms: 1,
        listens: None,
    };
    for spec in RULES {
        for verb in [Verb::Inspect, refresh.clone()] {
            match replies::read(value, &op(spec, verb)) {
                Ok(read) => said.push_str(&sort(&read.answer)),
                Err(wrong) => said.push_str(wrong),
            }
        }
    }
    said.push_str(&sort(&ClusterView::read(value, &from).map(|view| view.ranges.len())));
    if let Value::ServerError(error) = value {
        said.push_str(&sort(&Redirect::read(error, &from)));
        said.push_str(&sort(&failure::of(error).0));
    }
    let sentinels = Sentinels { at: Vec::new(), service: "s".into(), master: Access::default() };
    said.push_str(&sort(&SentinelResolver::new(sentinels).master(value.clone()).is_ok()));
    said
}

#[test]
fn whatever_comes_in_is_read_or_refused_and_both_readers_agree_where_it_ends() {
    let words = [
        "\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "_\r\n",
        "*0\r\n",
        ":",
        "$",
        "*",
        "%",
        ">",
        "~",
        "#t\r\n",
        ",nan\r\n",
        "held",
        "busy",
        "released",
        "found",
        "waiting",
        "places",
        "mismatch",
        "nolock",
        OWNER,
        "$1\r\n7\r\n",
        "MOVED",
        "?:0",
    ];
    fuzz("frame", &[], &words, |bytes| {
        let (tape, outcome) = parse(&[bytes]);
        // The result does not depend on how the input is split.
        let (first, rest) = bytes.split_at(bytes.len() * 2 / 3);
        let (in_parts, in_parts_outcome) = parse(&[first, rest]);
        assert_eq!((format!("{tape:?}"), outcome), (format!("{in_parts:?}"), in_parts_outcome));
        let mut said = outcome.err().map_or("fine", |Malformed(what)| what).to_owned();
        // The parser of the `redis` crate ends each value at the same byte.
        let mut rest = Cursor::new(bytes);
        let mut parser = redis::Parser::new();
        let mut replies = tape.replies();
        for _ in 0..outcome.map_or(0, |(whole, _)| whole) {
            said.push_str(&read_all(&replies.value().expect("a whole reply")));
            if let Err(error) = parser.parse_value(&mut rest) {
                assert!(!error.is_io_error(), "it waits for more than there is: {error}");
                return format!("{said} {:?}", error.kind());
            }
        }
        if let Ok((_, taken)) = outcome {
            assert!(rest.position() >= taken as u64, "they disagree where a value ends");
        }
        said
    });
}

/// Parses these pieces: the tape, with the number of whole replies and of their bytes, unless the input is
/// malformed.
fn parse(pieces: &[&[u8]]) -> (Tape, Result<(usize, usize), Malformed>) {
    let (mut parser, mut tape, mut buffer) = (Parser::default(), Tape::default(), Vec::new());
    let (mut whole, mut bytes, mut passed) = (0, 0, 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while !buffer.is_empty() {
            let (taken, is_whole) = match parser.parse(&buffer, &mut tape) {
                Ok(parsed) => parsed,
                Err(malformed) => return (tape, Err(malformed)),
            };
            buffer.drain(..taken);
            passed += taken;
            if !is_whole {
                break;
            }
            (whole, bytes) = (whole + 1, passed);
        }
    }
    (tape, Ok((whole, bytes)))
}

#[test]
fn whatever_a_message_says_it_names_tickets_only_as_they_are_written() {
    let inputs = ["5", "5,6,18446744073709551615", "", &format!("{OWNER}#5"), OWNER];
    fuzz("message", &inputs, &[",", "#", OWNER, "+", " "], |bytes| {
        let message = String::from_utf8_lossy(bytes);
        for spec in RULES {
            let wake = meant(&message, spec);
            match &wake {
                Notification::Granted { tickets } => {
                    let written: Vec<String> = tickets.iter().map(ToString::to_string).collect();
                    assert_eq!(written.join(","), message);
                    assert!(matches!(spec, LockSpec::Queue(_)));
                }
                Notification::Free { by: Some(by) } => assert!(message.starts_with(by.as_str())),
                _ => {}
            }
        }
        let mut said = sort(&meant(&message, RULES[0]));
        said.push_str(&sort(&meant(&message, RULES[2])));
        said
    });
}

#[test]
fn whatever_a_url_says_its_shown_form_says_the_same_and_no_password() {
    let words = [
        "redis",
        "valkeys",
        "-sentinel",
        "-cluster",
        "-quorum",
        "+unix",
        "://",
        "@",
        ":",
        "/",
        "?",
        "&",
        "=",
        "%",
        "%41",
        "%00",
        "%0a",
        "%25",
        "%2f",
        "[",
        "]",
        ",",
        "db",
        "user",
        "password",
        "ca",
        "cert",
        "key",
        "sentinel-user",
        "acks=2",
        "restart-grace=1500ms",
    ];
    let inputs = ["redis://h?acks=2&restart-grace=1500ms", "redis-sentinel://h/s?restart-grace=2h"];
    fuzz("url", &inputs, &words, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let (topology, _) = match Topology::read(&text) {
            Ok(read) => read,
            Err(error) => {
                let said = error.to_string();
                assert!(error.is_invalid() && said.starts_with("invalid Redis URL: "), "{said}");
                assert!(!said.contains(char::is_control) && said.len() < 600, "{said}");
                // Strip quoted input, so that it does not count as a new outcome.
                return said.split('`').next().unwrap_or_default().to_owned();
            }
        };
        let shown = topology.shown();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        let (again, _) = Topology::read(&shown).unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert_eq!(again.shown(), shown);
        assert_eq!(places(&again), places(&topology), "{shown}");
        sort(&topology)
    });
}

/// What a URL must preserve when shown and read again: addresses, databases, guarantees, namespace, and the Sentinel
/// service.
fn places(topology: &Topology) -> Vec<(String, u32, Guarantees, Namespace)> {
    let of = |at: String, access: &Access| (at, access.db, access.guarantees, access.namespace.clone());
    let at = |target: &Target| of(format!("{:?}", target.address), &target.access);
    match topology {
        Topology::Server(target) => vec![at(target)],
        Topology::Sentinel(Sentinels { at: all, service, master }) => {
            all.iter().map(at).chain([of(service.clone(), master)]).collect()
        }
        Topology::Cluster(all) | Topology::Quorum(all) => all.iter().map(at).collect(),
    }
}

#[test]
fn whatever_user_and_password_are_they_log_in_and_are_not_shown() {
    let inputs = ["ann hush", "a:b@c/d?e#f%g &=+", "\n ü✓"];
    fuzz("login", &inputs, &["@", ":", "/", "?", "%", ","], |bytes| {
        let text = String::from_utf8_lossy(bytes).replace('\0', "");
        let (user, password) = text.split_once(' ').unwrap_or(("", &text));
        // Markers that occur nowhere else in a URL.
        let (user, password) = (format!("«{user}"), format!("»{password}"));
        let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let (as_user, as_password) = (encoded(&user), encoded(&password));
        let wanted = Login { user: Some(user.clone()), password: Some(Password::Text(password.clone())) };
        let unix = format!("redis+unix:///s?user={as_user}&password={as_password}");
        for url in [format!("redis-quorum://{as_user}:{as_password}@a,b:2/3"), unix] {
            let (topology, _) = Topology::read(&url).expect("a URL");
            let access = match &topology {
                Topology::Server(target) => &target.access,
                Topology::Quorum(at) => &at[1].access,
                other => panic!("{other:?}"),
            };
            assert!(access.login == wanted, "{url}");
            let told = format!("{topology:?} {access:?} {}", topology.shown());
            assert!(!told.contains(['«', '»']), "{told}");
        }
        // Unencoded, the login may be parsed differently or rejected, but the error must not leak it.
        if let Err(error) = Topology::read(&format!("redis://{user}:{password}@h:x")) {
            assert!(!error.to_string().contains(['«', '»']), "{error}");
        }
        String::new()
    });
}

#[test]
fn whatever_a_lock_is_called_its_side_keys_are_in_its_slot() {
    let inputs = ["x", "{x}", "a}b", "{}x", "a{b}c", "tenure{}", "}{", "{{x}}"];
    fuzz("name", &inputs, &["{", "}", "{}", "tenure:", ":"], |bytes| {
        let name = String::from_utf8_lossy(bytes);
        for spec in RULES {
            if !name.is_empty() && share_a_slot(spec, &name) {
                for namespace in ["", "app:"] {
                    let (key, namespace) = (format!("{namespace}{name}"), namespace.len());
                    let space = Keyspace { db: 3, publish: Publish::Plain, has_slots: false, namespace };
                    for side in [ballot(space, &key), channel(space, spec, &key)] {
                        assert_eq!(slot(&side), slot(&key), "{side}");
                    }
                }
            }
        }
        match LockName::new(&name) {
            Ok(lock) => {
                assert_eq!(lock.as_str(), name);
                assert!(!lock.quoted().to_string().contains(char::is_control));
                let op = Op { name: lock, ..op(LockSpec::Mutex, Verb::Inspect) };
                assert!(crate::requests::scripted::Scripted::new(&op).keys.contains(&name.into_owned()));
                format!("a name {}", share_a_slot(LockSpec::Mutex, op.name.as_str()))
            }
            Err(error) => {
                assert!(error.is_invalid());
                error.to_string().chars().take(40).collect()
            }
        }
    });
}

#[test]
fn whatever_an_owner_says_it_reads_as_it_is_written() {
    fuzz("owner", &[], &["@", ":", "/", "#", "%", "%4", "-", "A"], |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match text.parse::<Owner>() {
            Ok(owner) => {
                assert_eq!(owner.to_string(), text);
                let place = format!("@{}:{}/", owner.host(), owner.pid());
                assert!(text.starts_with(owner.user()) && text.contains(&place), "{text}: {place}");
                let label = owner.label();
                assert!(label.is_empty() || text[owner.user().len()..].starts_with('/'), "{text}: {label}");
                "an owner".into()
            }
            Err(error) => {
                assert!(error.is_invalid() && !error.to_string().contains(char::is_control));
                "none".into()
            }
        }
    });
}
