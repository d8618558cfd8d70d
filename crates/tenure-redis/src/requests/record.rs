//! Records beside locks: read by a plain GET, written by a script.

use std::iter;
use std::sync::Arc;

use crate::connection::pipeline::Pipeline;
use crate::connection::server_clock::ServerClock;
use crate::replies::failure;
use crate::replies::{bytes, number};
use crate::requests::script::RECORD;
use crate::requests::{RequestContext, RoutedRequest, answered, keys, refused};
use crate::resp::encode::{Commands, command};
use crate::resp::parse::Reply;
use crate::resp::{ServerError, Value};
use crate::topology::slots;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::protocol::LockSpec;
use tenure_core::protocol::record::{Put, Record, RecordAnswer, RecordOp, RecordVerb, Then};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, SETUP};

pub(crate) async fn ask(
    runtime: &dyn Runtime,
    routed: &RoutedRequest<'_, RecordOp>,
) -> Result<RecordAnswer, Failure> {
    let answer = match &routed.op.verb {
        RecordVerb::Read => read(runtime, routed).await?,
        RecordVerb::Put(put) => written(&run(routed).await?, put.owner.as_str(), routed),
        RecordVerb::Void => written(&run(routed).await?, "", routed),
    };
    answer.ok_or_else(|| {
        // Replies can no longer be matched with requests.
        routed.pipeline.hang_up();
        Failure::Unknown(Failure::cause("a malformed reply about a record"))
    })
}

/// A plain GET, with a TIME before it if the server's clock is not known.
async fn read(
    runtime: &dyn Runtime,
    routed: &RoutedRequest<'_, RecordOp>,
) -> Result<Option<RecordAnswer>, Failure> {
    let RoutedRequest { op, pipeline, context, deadline } = *routed;
    let sent = runtime.now();
    let known = pipeline.clock().and_then(|clock| clock.read(sent));
    let in_flight = pipeline.send(deadline, |out| {
        if known.is_none() {
            out.command(&["TIME"]);
        }
        if context.asking {
            out.command(&["ASKING"]);
        }
        out.begin(2).arg("GET").parts(&keys::record(context.space, &op.lock));
    });
    let replies = in_flight?.read(|tape| {
        let mut replies = tape.replies();
        let time = if known.is_none() { replies.value() } else { None };
        if context.asking {
            replies.head();
        }
        // A value not written by the script counts as none: the next write replaces it.
        let record = match replies.head() {
            Some(Reply::Bulk(text)) => Ok(stored(text)),
            Some(Reply::Error(text)) => Err(ServerError::new(String::from_utf8_lossy(text).into_owned())),
            _ => Ok(None),
        };
        (time, record)
    });
    let (time, record) = replies.await?;
    let now_us = match time {
        None => known,
        Some(time) => {
            let time = time_of(&answered(pipeline, time)?);
            let clock = time.map(|unix_us| ServerClock { at: sent + runtime.now().since(sent) / 2, unix_us });
            pipeline.set_clock(clock);
            time
        }
    };
    let record = record.map_err(|error| refused(pipeline, &error))?;
    Ok(now_us.map(|now_us| RecordAnswer::Read { record, now_us }))
}

/// The server's clock, in microseconds since 1970.
pub(crate) async fn now_us(
    runtime: &dyn Runtime,
    pipeline: &Pipeline,
    deadline: Moment,
) -> Result<u64, Failure> {
    let sent = runtime.now();
    if let Some(known) = pipeline.clock().and_then(|clock| clock.read(sent)) {
        return Ok(known);
    }
    let time = answered(pipeline, pipeline.ask(&command(&["TIME"]), deadline).await?)?;
    let unix_us = time_of(&time).ok_or_else(|| {
        pipeline.hang_up();
        Failure::Unknown(Failure::cause("a malformed reply to TIME"))
    })?;
    pipeline.set_clock(Some(ServerClock { at: sent + runtime.now().since(sent) / 2, unix_us }));
    Ok(unix_us)
}

/// The records with these keys; `None` for a key that is gone, or whose slot has migrated. One MGET, except
/// where the keys may be in several slots, or the user may not use it.
pub(crate) async fn values(
    pipeline: &Pipeline,
    keys: &[String],
    context: RequestContext,
    deadline: Moment,
) -> Result<Vec<Option<Record>>, Failure> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let record = |value: &Value| bytes(value).and_then(stored);
    let words: Vec<&str> = iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
    if !context.space.has_slots
        && let Value::Array(values) = pipeline.ask(&command(&words), deadline).await?
        && values.len() == keys.len()
    {
        return Ok(values.iter().map(record).collect());
    }
    let mut commands = Commands::default();
    for key in keys {
        commands.command(&["GET", key]);
    }
    let values = pipeline.ask_all(&commands, deadline).await?;
    let each = values.into_iter().map(|value| match answered(pipeline, value) {
        Err(failure) if failure::said_in(&failure).is_some_and(slots::redirects) => Ok(None),
        value => value.map(|value| record(&value)),
    });
    each.collect()
}

async fn send(routed: &RoutedRequest<'_, RecordOp>, command: &Commands) -> Result<Value, Failure> {
    let RoutedRequest { pipeline, context, deadline, .. } = *routed;
    match context.asking {
        true => pipeline.ask_for_slot(command, deadline).await,
        false => pipeline.ask(command, deadline).await,
    }
}

fn time_of(value: &Value) -> Option<u64> {
    let Value::Array(parts) = value else { return None };
    let [seconds, micros] = &parts[..] else { return None };
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

fn stored(text: &[u8]) -> Option<Record> {
    let space = text.iter().position(|byte| *byte == b' ')?;
    let at_us = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
    Some(Record { at_us, value: Arc::from(&text[space + 1..]) })
}

async fn run(routed: &RoutedRequest<'_, RecordOp>) -> Result<Value, Failure> {
    let RoutedRequest { op, pipeline, context, .. } = *routed;
    let in_full = context.asking || pipeline.brings_script();
    let mut value = send(routed, &script(op, context, in_full)).await?;
    if let Value::ServerError(error) = &value
        && failure::is_no_script(error)
    {
        value = send(routed, &script(op, context, true)).await?;
    }
    answered(pipeline, value).map_err(|failure| match failure::forbids_scripts(&failure) {
        true => Failure::impossible(format!("it forbids scripts, and records need them: {failure}")),
        false => failure,
    })
}

fn script(op: &RecordOp, context: RequestContext, in_full: bool) -> Commands {
    let mut commands = Commands::default();
    let args = if let RecordVerb::Put(_) = op.verb { 9 } else { 4 };
    let command = RECORD.call(&mut commands, in_full, 2, args);
    command.arg(op.lock.as_str()).parts(&keys::record(context.space, &op.lock));
    let channel = keys::channel(context.space, LockSpec::Mutex, op.lock.as_str());
    let publish = context.space.publish.command();
    match &op.verb {
        RecordVerb::Put(Put { owner, window, keep_ms, then, value }) => {
            command.arg("put").arg(owner.as_str());
            match window {
                Some(window) => command.number(window.start).number(window.end),
                None => command.arg("").arg(""),
            };
            let then = match then {
                Then::Nothing => "",
                Then::Release => "release",
                Then::Tell => "tell",
            };
            command.number(*keep_ms).arg(then).arg(channel).arg(publish).arg(&value[..]);
        }
        RecordVerb::Void | RecordVerb::Read => {
            command.arg("void").arg("").arg(channel).arg(publish);
        }
    }
    commands
}

fn written(value: &Value, asker: &str, routed: &RoutedRequest<'_, RecordOp>) -> Option<RecordAnswer> {
    let RoutedRequest { op, context, .. } = *routed;
    let Value::Array(parts) = value else { return None };
    let [owner, answer, rest @ ..] = &parts[..] else { return None };
    if bytes(owner)? != asker.as_bytes() {
        return None;
    }
    let (answer, unheard) = match (bytes(answer)?, rest) {
        (b"stored", [now, unheard]) => (RecordAnswer::Stored { at_us: number(now)? }, Some(unheard)),
        (b"not_held", []) => (RecordAnswer::NotHeld, None),
        (b"outside_window", [now]) => (RecordAnswer::OutsideWindow { now_us: number(now)? }, None),
        (b"voided", [unheard]) => (RecordAnswer::Voided, Some(unheard)),
        _ => return None,
    };
    if let Some(why) = unheard.and_then(bytes).filter(|why| !why.is_empty()) {
        event!(
            WARN,
            target: SETUP,
            "wake_refused",
            "cannot wake the waiters",
            lock = text(context.space.name(&op.lock)),
            why = String::from_utf8_lossy(why).into_owned(),
        );
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_moment_and_its_bytes() {
        let record = stored(b"17 a b\n\xff").expect("a record");
        assert_eq!((record.at_us, &record.value[..]), (17, &b"a b\n\xff"[..]));
        for other in [&b""[..], b"17", b"x 1", b" 1", b"-1 1"] {
            assert_eq!(stored(other), None);
        }
    }
}
