//! Replies of the scripts, read strictly: what has another shape, or is for somebody else, is no reply at all.

use redis::Value;

use crate::protocol::{Answer, Found, Holding, Kind, Op};

/// A reply taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// What the lock says.
    pub(super) answer: Answer,
    /// Why those who wait could not be told that it is free.
    pub(super) unheard: Option<String>,
}

/// Reads the reply to `op`; the error says what is wrong with it.
pub(super) fn read(value: &Value, op: &Op) -> Result<Read, &'static str> {
    let Value::Array(parts) = value else { return Err("a reply that is no list") };
    let [owner, request, answer, rest @ ..] = &parts[..] else { return Err("a reply that is too short") };
    if bytes(owner) != Some(op.owner.as_str().as_bytes()) {
        return Err("a reply to another owner");
    }
    if number(request) != Some(op.request) {
        return Err("a reply to another request");
    }
    let answer = bytes(answer).ok_or("a reply without an answer")?;
    read_answer(answer, rest).ok_or("an answer that is none")
}

fn read_answer(answer: &[u8], rest: &[Value]) -> Option<Read> {
    let (answer, unheard) = match (answer, rest) {
        (b"held", [token]) => (Answer::Held { fence: number(token)? }, None),
        (b"busy", [holder, left_ms]) => {
            (Answer::Busy { holder: text(holder)?, left_ms: left(left_ms)? }, None)
        }
        (b"free", []) => (Answer::Free, None),
        (b"released", [unheard]) => (Answer::Released { left: 0 }, Some(text(unheard)?)),
        (b"found", [kind, holder, left_ms, rest @ ..]) => {
            let unheard = match rest {
                [] => None,
                [unheard] => Some(text(unheard)?),
                _ => return None,
            };
            (Answer::Found(found(self::kind(kind)?, text(holder)?, left(left_ms)?)), unheard)
        }
        (b"mismatch", [kind]) => (Answer::Mismatch { kind: self::kind(kind)?, capacity: None }, None),
        (b"behind", [ballot]) => (Answer::Behind { ballot: number(ballot)? }, None),
        (b"ahead", []) => (Answer::Ahead, None),
        _ => return None,
    };
    Some(Read { answer, unheard: unheard.filter(|why| !why.is_empty()) })
}

/// What stands at a name; without a holder where its kind has no machine yet.
pub(super) fn found(kind: Kind, holder: String, left_ms: Option<u64>) -> Found {
    let holders = match kind {
        Kind::Mutex => vec![Holding { value: holder, left_ms, weight: 1 }],
        _ => Vec::new(),
    };
    Found { kind, capacity: None, holders, waiters: Vec::new() }
}

pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// Foreign clients may write what is no text; it is shown as well as it can be.
pub(super) fn text(value: &Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

fn number(value: &Value) -> Option<u64> {
    let digits = std::str::from_utf8(bytes(value)?).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn kind(value: &Value) -> Option<Kind> {
    std::str::from_utf8(bytes(value)?).ok()?.parse().ok()
}

/// A TTL as PTTL tells it: -1 where there is none.
#[expect(clippy::option_option, reason = "no TTL is an answer, and no number is none")]
pub(super) fn left(value: &Value) -> Option<Option<u64>> {
    match value {
        Value::Int(-1) => Some(None),
        Value::Int(left_ms) => u64::try_from(*left_ms).ok().map(Some),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockName;
    use crate::owner::Owner;
    use crate::protocol::{Rule, Verb};

    fn op() -> Op {
        let owner = Owner::new("a").expect("an owner");
        let name = LockName::new("x").expect("a name");
        Op { name, rule: Rule::Mutex, owner, request: 7, verb: Verb::Inspect }
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
        let found = |holder: &str, left_ms| Answer::Found(found(Kind::Mutex, holder.into(), left_ms));
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
            (vec![bulk("behind"), bulk("9")], Answer::Behind { ballot: 9 }),
            (vec![bulk("ahead")], Answer::Ahead),
        ] {
            assert_eq!(read(&reply(&op, &rest), &op), Ok(Read { answer, unheard: None }));
        }
        let unheard = read(&reply(&op, &[bulk("released"), bulk("NOPERM")]), &op).expect("a reply").unheard;
        assert_eq!(unheard.as_deref(), Some("NOPERM"));
    }

    #[test]
    fn what_is_for_somebody_else_or_has_another_shape_is_no_reply() {
        let op = op();
        let other =
            Value::Array(vec![bulk(Owner::new("a").expect("an owner").as_str()), bulk("7"), bulk("free")]);
        assert_eq!(read(&other, &op), Err("a reply to another owner"));
        let other = Value::Array(vec![bulk(op.owner.as_str()), bulk("8"), bulk("free")]);
        assert_eq!(read(&other, &op), Err("a reply to another request"));
        for value in [Value::Nil, Value::Okay, Value::Int(1), bulk("held"), Value::Array(vec![])] {
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
