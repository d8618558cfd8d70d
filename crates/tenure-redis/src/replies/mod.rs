//! Strict parsing of script replies: a reply with an unexpected shape, owner or request is invalid.
//!
//! `failure` classifies server errors.

pub(crate) mod failure;

use crate::resp::parse::{Replies, Reply};
use crate::resp::{ServerError, Value};
use tenure_core::protocol::{Answer, Found, Holding, Kind, LockSpec, Op, Place, Verb, parse_value};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) answer: Answer,
    /// Why waiters could not be notified of the release.
    pub(crate) unheard: Option<String>,
    /// The token was issued for this request, so the counter is at least at the server's clock.
    pub(crate) is_counted: bool,
}

/// The outcome of a script.
pub(crate) enum ScriptReply {
    /// It leaves the decision to another script.
    Nothing,
    Answer(Reading),
    Error(ServerError),
}

/// The reply to a request, or what is wrong with it.
pub(crate) type Reading = Result<Read, &'static str>;

impl ScriptReply {
    /// Reads the next reply, which must be to `op`.
    pub(crate) fn of(mut replies: Replies<'_>, op: &Op) -> Self {
        match replies.clone().next() {
            None | Some(Reply::Nil) => Self::Nothing,
            Some(Reply::Bulk(line)) => Self::Answer(read_line(line, op)),
            _ => match replies.value() {
                Some(Value::ServerError(error)) => Self::Error(error),
                value => Self::Answer(read(&value.unwrap_or(Value::Nil), op)),
            },
        }
    }

    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, Self::Error(error) if failure::is_no_script(error))
    }
}

/// Reads the reply to `op`; the error says what is wrong with it.
pub(crate) fn read(value: &Value, op: &Op) -> Reading {
    let parts = match value {
        Value::Array(parts) => parts,
        Value::BulkString(line) => return read_line(line, op),
        _ => return Err("a reply that is neither list nor string"),
    };
    let [owner, request, answer, rest @ ..] = &parts[..] else { return Err("a reply that is too short") };
    is_for(op, bytes(owner), number(request))?;
    let answer = bytes(answer).ok_or("a reply without an answer")?;
    match op.spec {
        LockSpec::Queue(_) => read_queue(answer, rest, op),
        LockSpec::Mutex | LockSpec::Reentrant => read_answer(answer, rest),
    }
    .ok_or("a malformed answer")
}

/// Reads the reply to a batch of renewals: an answer per lock, `None` where the script leaves it open.
pub(crate) fn read_renewals(value: &Value, ops: &[Op]) -> Result<Vec<Option<Answer>>, &'static str> {
    let Value::BulkString(line) = value else { return Err("a reply that is no string") };
    let line = std::str::from_utf8(line).map_err(|_| "a reply that is no text")?;
    let mut words = line.split(' ');
    is_for(&ops[0], words.next().map(str::as_bytes), words.next().and_then(digits))?;
    let answer = |word| match word {
        "-" => Some(None),
        "free" => Some(Some(Answer::Free)),
        token => digits(token).map(|fence| Some(Answer::Held { fence })),
    };
    let answers: Option<Vec<_>> = words.map(answer).collect();
    answers.filter(|answers| answers.len() == ops.len()).ok_or("a malformed answer")
}

/// Checks that a reply is to `op`; all parsers do it here. A reply to another request means that replies can
/// no longer be matched with requests.
fn is_for(op: &Op, owner: Option<&[u8]>, request: Option<u64>) -> Result<(), &'static str> {
    if owner != Some(op.owner.as_str().as_bytes()) {
        return Err("a reply to another owner");
    }
    if request != Some(op.request) {
        return Err("a reply to another request");
    }
    Ok(())
}

/// Frequent answers are a single string, because a list is several times more expensive for the server and
/// the client.
fn read_line(line: &[u8], op: &Op) -> Reading {
    let line = std::str::from_utf8(line).map_err(|_| "a reply that is no text")?;
    let (line, is_bounded) = match line.strip_suffix(" more") {
        Some(line) if matches!(op.spec, LockSpec::Queue(_)) => (line, true),
        _ => (line, false),
    };
    let mut words = line.split(' ');
    is_for(op, words.next().map(str::as_bytes), words.next().and_then(digits))?;
    let word = words.next().ok_or("a reply without an answer")?;
    let rest = [words.next(), words.next(), words.next()];
    let is_counted = op.spec != LockSpec::Reentrant && matches!(rest, [Some(_), Some("new"), None]);
    let answer = match (op.spec, word, rest) {
        (_, "held", [Some(token), Some(_), None]) if is_counted => {
            digits(token).map(|fence| Answer::Held { fence })
        }
        (_, "held", [Some(token), None, None]) => digits(token).map(|fence| Answer::Held { fence }),
        (LockSpec::Queue(_), "waiting", [Some(ticket), Some(retry_in_ms), None]) => {
            let retry_in_ms = if retry_in_ms == "-1" { Some(None) } else { digits(retry_in_ms).map(Some) };
            digits(ticket)
                .zip(retry_in_ms)
                .map(|(ticket, retry_in_ms)| Answer::Waiting { ticket, retry_in_ms })
        }
        (LockSpec::Queue(_), "growing", [Some(token), Some(retry_in_ms), None]) => digits(token)
            .zip(digits(retry_in_ms))
            .map(|(fence, retry_in_ms)| Answer::Growing { fence, retry_in_ms }),
        (LockSpec::Reentrant, "released", [Some(left), None, None]) => {
            digits(left).and_then(|left| left.try_into().ok()).map(|left| Answer::Released { left })
        }
        (LockSpec::Mutex | LockSpec::Queue(_), "released", [None, ..]) => Some(Answer::Released { left: 0 }),
        _ => None,
    };
    let answer = answer.ok_or("a malformed answer")?;
    let answer = if is_bounded { answer.and_more() } else { answer };
    Ok(Read { answer, unheard: None, is_counted })
}

/// Answers of the mutex and reentrant machines.
fn read_answer(answer: &[u8], rest: &[Value]) -> Option<Read> {
    let (answer, unheard) = match (answer, rest) {
        (b"released", [unheard]) => (Answer::Released { left: 0 }, Some(text(unheard)?)),
        (b"released", [left, unheard]) => (Answer::Released { left: int(left)? }, Some(text(unheard)?)),
        (b"found", [kind, holder, left_ms, rest @ ..]) => {
            let (weight, rest) = match (self::kind(kind)?, rest) {
                (Kind::Mutex, rest) => (1, rest),
                (Kind::Reentrant, [count, rest @ ..]) => (number(count)?.try_into().unwrap_or(1), rest),
                _ => return None,
            };
            let unheard = match rest {
                [] => None,
                [unheard] => Some(text(unheard)?),
                _ => return None,
            };
            let holding = Holding { value: bytes(holder)?.to_vec(), left_ms: left(left_ms)?, weight };
            (Answer::Found(Found::one(self::kind(kind)?, holding)), unheard)
        }
        (answer, rest) => (read_common(answer, rest)?, None),
    };
    Some(Read { answer, unheard: unheard.filter(|why| !why.is_empty()), is_counted: false })
}

/// Answers of the queue machine. Any answer may be marked as incomplete (`more`), because requests are
/// bounded, and may end with the reason why granted waiters could not be notified.
fn read_queue(answer: &[u8], rest: &[Value], op: &Op) -> Option<Read> {
    let places = match &op.verb {
        Verb::Refresh { owners, .. } => owners.len(),
        _ => 0,
    };
    let own = match answer {
        b"held" | b"nolock" => 1,
        b"waiting" | b"growing" | b"busy" => 2,
        b"found" => 5,
        b"places" => 2 + places,
        b"mismatch" => rest.len().min(2),
        _ => 0,
    };
    let is_more = |word: &Value| bytes(word) == Some(b"more");
    let (rest, is_bounded, unheard) = match rest.split_at_checked(own)? {
        (rest, []) => (rest, false, None),
        (rest, [more]) if is_more(more) => (rest, true, None),
        (rest, [unheard]) => (rest, false, Some(text(unheard)?)),
        (rest, [more, unheard]) if is_more(more) => (rest, true, Some(text(unheard)?)),
        _ => return None,
    };
    let answer = match (answer, rest) {
        (b"released", []) => Answer::Released { left: 0 },
        (b"resized", []) => Answer::Resized,
        (b"growing", [token, retry_in_ms]) => {
            Answer::Growing { fence: number(token)?, retry_in_ms: int(retry_in_ms)?.into() }
        }
        (b"waiting", [ticket, retry_in_ms]) => {
            Answer::Waiting { ticket: number(ticket)?, retry_in_ms: left(retry_in_ms)? }
        }
        (b"places", [mark, retry_in_ms, tickets @ ..]) => {
            let mark = number(mark)?;
            let places = tickets.iter().map(|ticket| place(ticket, mark)).collect::<Option<_>>()?;
            Answer::Places { places, retry_in_ms: left(retry_in_ms)? }
        }
        (b"found", [kind, capacity, holders, waiters, unlisted]) => {
            let (kind, capacity) = (self::kind(kind)?, Some(number(capacity)?.try_into().ok()?));
            let (holders, waiters, unlisted) = (holdings(holders)?, holdings(waiters)?, int(unlisted)?);
            Answer::Found(Found { kind, capacity, holders, waiters, unlisted: unlisted.into() })
        }
        (answer, rest) => read_common(answer, rest)?,
    };
    let answer = if is_bounded { answer.and_more() } else { answer };
    Some(Read { answer, unheard, is_counted: false })
}

/// Answers that all machines share.
fn read_common(answer: &[u8], rest: &[Value]) -> Option<Answer> {
    Some(match (answer, rest) {
        (b"held", [token]) => Answer::Held { fence: number(token)? },
        (b"busy", [holder, left_ms]) => Answer::Busy { holder: text(holder)?, left_ms: left(left_ms)? },
        (b"free", []) => Answer::Free,
        (b"mismatch", [kind]) => Answer::Mismatch { kind: self::kind(kind)?, capacity: None },
        (b"mismatch", [kind, capacity]) => {
            Answer::Mismatch { kind: self::kind(kind)?, capacity: Some(number(capacity)?.try_into().ok()?) }
        }
        (b"nolock", [type_name]) => Answer::NoLock { type_name: text(type_name)? },
        (b"behind", [ballot]) => Answer::Behind { ballot: number(ballot)? },
        (b"ahead", []) => Answer::Ahead,
        _ => return None,
    })
}

/// Reads the value of the only holder of a queue: `owner#1:KIND:CAPACITY+WEIGHT#token`, or without its token.
pub(crate) fn solo(value: &[u8], left_ms: Option<u64>) -> Option<Found> {
    let (owner, rest) = std::str::from_utf8(value).ok()?.split_once("#1:")?;
    let (kind, rest) = rest.split_once(':')?;
    let (capacity, rest) = rest.split_once('+')?;
    let (weight, token) = rest.split_once('#').unwrap_or((rest, "0"));
    let value = format!("{owner}#{token}").into_bytes();
    let _is_ours = parse_value(&value)?;
    let holding = Holding { value, left_ms, weight: digits(weight)?.try_into().ok()? };
    let capacity = Some(digits(capacity)?.try_into().ok()?);
    Some(Found { capacity, ..Found::one(kind.parse().ok()?, holding) })
}

fn place(ticket: &Value, mark: u64) -> Option<Place> {
    if bytes(ticket)?.is_empty() {
        return Some(Place::Gone);
    }
    let ticket = number(ticket)?;
    Some(if ticket <= mark { Place::Held { fence: ticket } } else { Place::Waiting { ticket } })
}

fn holdings(value: &Value) -> Option<Vec<Holding>> {
    let Value::Array(parts) = value else { return None };
    let (each, []) = parts.as_chunks::<3>() else { return None };
    each.iter()
        .map(|[value, left_ms, weight]| {
            Some(Holding { value: bytes(value)?.to_vec(), left_ms: left(left_ms)?, weight: int(weight)? })
        })
        .collect()
}

pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// Lossy, because other clients may write values that are not UTF-8.
pub(crate) fn text(value: &Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// A reply that is text for people, if it is UTF-8.
pub(crate) fn prose(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    digits(std::str::from_utf8(bytes(value)?).ok()?)
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

pub(crate) fn int(value: &Value) -> Option<u32> {
    match value {
        Value::Int(int) => u32::try_from(*int).ok(),
        _ => None,
    }
}

fn kind(value: &Value) -> Option<Kind> {
    std::str::from_utf8(bytes(value)?).ok()?.parse().ok()
}

/// A TTL as PTTL reports it: -1 for a key without one.
#[expect(clippy::option_option, reason = "no TTL is an answer, and no number is an error")]
pub(crate) fn left(value: &Value) -> Option<Option<u64>> {
    match value {
        Value::Int(-1) => Some(None),
        Value::Int(left_ms) => u64::try_from(*left_ms).ok().map(Some),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::name::LockName;
    use tenure_core::owner::Owner;
    use tenure_core::protocol::QueueSpec;

    fn op() -> Op {
        let owner = Owner::new("a").expect("an owner");
        let name = LockName::new("x").expect("a name");
        Op { name, spec: LockSpec::Mutex, owner, request: 7, verb: Verb::Inspect }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn reply(op: &Op, rest: &[Value]) -> Value {
        Value::Array([&[bulk(op.owner.as_str()), bulk("7")], rest].concat())
    }

    #[test]
    fn each_answer_is_read() {
        let op = op();
        let found = |value: &str, left_ms| {
            Answer::Found(Found::one(Kind::Mutex, Holding { value: value.into(), left_ms, weight: 1 }))
        };
        for (rest, answer) in [
            (vec![bulk("held"), bulk("17")], Answer::Held { fence: 17 }),
            (
                vec![bulk("busy"), bulk("b"), Value::Int(3)],
                Answer::Busy { holder: "b".into(), left_ms: Some(3) },
            ),
            (
                vec![bulk("busy"), bulk(""), Value::Int(-1)],
                Answer::Busy { holder: String::new(), left_ms: None },
            ),
            (vec![bulk("free")], Answer::Free),
            (vec![bulk("released"), bulk("")], Answer::Released { left: 0 }),
            (vec![bulk("found"), bulk("mutex"), bulk("b"), Value::Int(3)], found("b", Some(3))),
            (vec![bulk("found"), bulk("mutex"), bulk("b"), Value::Int(-1), bulk("")], found("b", None)),
            (
                vec![bulk("mismatch"), bulk("reentrant mutex")],
                Answer::Mismatch { kind: Kind::Reentrant, capacity: None },
            ),
            (vec![bulk("nolock"), bulk("list")], Answer::NoLock { type_name: "list".into() }),
            (vec![bulk("behind"), bulk("9")], Answer::Behind { ballot: 9 }),
            (vec![bulk("ahead")], Answer::Ahead),
        ] {
            assert_eq!(read(&reply(&op, &rest), &op), Ok(Read { answer, unheard: None, is_counted: false }));
        }
        let unheard = read(&reply(&op, &[bulk("released"), bulk("NOPERM")]), &op).expect("a reply").unheard;
        assert_eq!(unheard.as_deref(), Some("NOPERM"));
    }

    #[test]
    fn what_is_answered_most_is_one_string() {
        let queue = || Op { spec: LockSpec::Queue(QueueSpec::FAIR), ..op() };
        let reentrant = || Op { spec: LockSpec::Reentrant, ..op() };
        let line = |op: &Op, rest: &str| read(&bulk(&format!("{} {} {rest}", op.owner, op.request)), op);
        for (op, rest, answer) in [
            (op(), "held 17", Answer::Held { fence: 17 }),
            (op(), "held 17 new", Answer::Held { fence: 17 }),
            (op(), "released", Answer::Released { left: 0 }),
            (reentrant(), "held 17", Answer::Held { fence: 17 }),
            (reentrant(), "released 2", Answer::Released { left: 2 }),
            (queue(), "held 17", Answer::Held { fence: 17 }),
            (queue(), "held 17 new", Answer::Held { fence: 17 }),
            (queue(), "released", Answer::Released { left: 0 }),
            (queue(), "waiting 18 -1", Answer::Waiting { ticket: 18, retry_in_ms: None }),
            (queue(), "waiting 18 30", Answer::Waiting { ticket: 18, retry_in_ms: Some(30) }),
            (queue(), "growing 18 30", Answer::Growing { fence: 18, retry_in_ms: 30 }),
            (queue(), "released more", Answer::Released { left: 0 }.and_more()),
            (queue(), "waiting 18 -1 more", Answer::Waiting { ticket: 18, retry_in_ms: None }.and_more()),
        ] {
            let is_counted = rest.ends_with(" new");
            assert_eq!(line(&op, rest), Ok(Read { answer, unheard: None, is_counted }));
            let Op { owner, request, .. } = &op;
            for other in [format!("{owner}x {request} {rest}"), format!("{owner} {request}0 {rest}")] {
                assert!(read(&bulk(&other), &op).is_err(), "{other}");
            }
            for other in ["", " x", " 1 1", " -1"] {
                assert!(line(&op, &format!("{rest}{other} ")).is_err(), "{rest}{other}");
            }
        }
        for (op, rest) in [
            (op(), ""),
            (op(), "held"),
            (op(), "held +17"),
            (op(), "held 17 old"),
            (reentrant(), "held 17 new"),
            (op(), "held 18446744073709551616"),
            (op(), "waiting 18 30"),
            (op(), "released 2"),
            (reentrant(), "released"),
            (reentrant(), "released 2 more"),
            (op(), "released more"),
            (reentrant(), "released 4294967296"),
            (queue(), "waiting 18"),
            (queue(), "waiting 18 -2"),
            (queue(), "growing 18"),
            (queue(), "growing 18 -1"),
            (op(), "growing 18 30"),
            (queue(), "free"),
        ] {
            assert!(line(&op, rest).is_err(), "{rest}");
        }
    }

    #[test]
    fn what_is_for_somebody_else_or_has_another_shape_is_no_reply() {
        let op = op();
        let other =
            Value::Array(vec![bulk(Owner::new("a").expect("an owner").as_str()), bulk("7"), bulk("free")]);
        assert_eq!(read(&other, &op), Err("a reply to another owner"));
        let other = Value::Array(vec![bulk(op.owner.as_str()), bulk("8"), bulk("free")]);
        assert_eq!(read(&other, &op), Err("a reply to another request"));
        for value in
            [Value::Nil, Value::SimpleString("OK".into()), Value::Int(1), bulk("held"), Value::Array(vec![])]
        {
            assert!(read(&value, &op).is_err());
        }
        for rest in [
            vec![],
            vec![bulk("held")],
            vec![bulk("held"), bulk("-1")],
            vec![bulk("held"), bulk("18446744073709551616")],
            vec![bulk("held"), Value::Int(1)],
            vec![bulk("busy"), bulk("b"), Value::Int(-2)],
            vec![bulk("busy"), bulk("b"), bulk("1")],
            vec![bulk("free"), bulk("")],
            vec![bulk("mismatch"), bulk("umbrella")],
            vec![bulk("granted")],
            vec![Value::Nil],
        ] {
            assert!(read(&reply(&op, &rest), &op).is_err(), "{rest:?}");
        }
    }
}
