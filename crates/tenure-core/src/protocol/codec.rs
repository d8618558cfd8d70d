//! Text encoding of locks, for stores without data types of their own. Decoding is strict: text that no
//! machine would write is rejected.
//!
//! A store keeps the [version](VERSION), the [kind] and the [value](encode) of a lock in whatever form suits
//! it. A lock of another version is neither free nor held: it is an error.

use std::fmt::Write;
use std::str::FromStr;

use super::queue::{Queue, Ticket};
use super::reentrant::{self, Hash};
use super::{Data, Kind, LockSpec, QueueSpec};
use crate::owner::Owner;

/// Version of the encoding.
pub const VERSION: &str = "1";

/// The kind of a value. For a queue it is the queue's own kind.
pub fn kind(data: &Data) -> Kind {
    match data {
        Data::Text(_) => Kind::Mutex,
        Data::Hash(_) => Kind::Reentrant,
        Data::Queue(queue) => queue.kind,
    }
}

/// Encodes a value. A mutex is its value; a reentrant mutex has a line `FIELD VALUE` for each field; a queue
/// has a line for its capacity and mark, and a line `NUMBER WEIGHT DEADLINE OWNER` for each ticket. A `=`
/// precedes a capacity that was set explicitly. Listening numbers are not kept: these stores detect dead
/// clients in other ways.
pub fn encode(data: &Data) -> String {
    let mut text = String::new();
    match data {
        Data::Text(value) => text.push_str(value),
        Data::Hash(hash) => {
            for (field, value) in hash {
                let _ = writeln!(text, "{field} {value}");
            }
        }
        Data::Queue(queue) => {
            let set = if queue.is_set { "=" } else { "" };
            let _ = writeln!(text, "{set}{} {}", queue.capacity, queue.mark);
            for (number, Ticket { owner, weight, deadline_ms, .. }) in queue.tickets() {
                let _ = writeln!(text, "{number} {weight} {deadline_ms} {owner}");
            }
        }
    }
    text
}

/// Stands for the token in the output of [`sole`].
pub const TOKEN: char = '\u{1}';
/// Stands for the end of the lease there, in milliseconds since 1970.
pub const END: char = '\u{2}';

/// The encoded value of a lock with one holder, which has it once, and no waiter.
pub fn sole(spec: LockSpec, owner: &Owner, hold: u64) -> String {
    match spec {
        LockSpec::Mutex => format!("{owner}#{TOKEN}"),
        LockSpec::Reentrant => {
            let holder = [owner.to_string(), reentrant::field(hold)].map(|field| (field, "1".to_owned()));
            let token = (reentrant::FENCE.to_owned(), TOKEN.to_string());
            encode(&Data::Hash(Hash::from_iter(holder.into_iter().chain([token]))))
        }
        LockSpec::Queue(QueueSpec { capacity, weight, .. }) => {
            format!("{capacity} {TOKEN}\n{TOKEN} {weight} {END} {owner}\n")
        }
    }
}

/// Decodes the output of [`encode`].
pub fn decode(kind: Kind, text: &str) -> Option<Data> {
    match kind {
        Kind::Mutex => Some(Data::Text(text.to_owned())),
        Kind::Reentrant => hash(text).map(Data::Hash),
        Kind::Fair | Kind::RwLock | Kind::Semaphore => {
            queue(kind, text).filter(|queue| queue.owners() > 0 || queue.is_set).map(Data::Queue)
        }
    }
}

/// Like [`decode`], for a queue whose waiters are kept elsewhere, which may have no ticket.
pub fn decode_part(kind: Kind, text: &str) -> Option<Data> {
    match kind {
        Kind::Mutex | Kind::Reentrant => decode(kind, text),
        Kind::Fair | Kind::RwLock | Kind::Semaphore => queue(kind, text).map(Data::Queue),
    }
}

/// One owner, whose count is the number of its holds, and the token.
fn hash(text: &str) -> Option<Hash> {
    let mut hash = Hash::new();
    let (mut count, mut holds) = (None, 0_u64);
    for line in lines(text)? {
        let (field, value) = line.split_once(' ')?;
        let counted: u64 = number(value)?;
        match field.strip_prefix('#') {
            None => {
                let _: Owner = field.parse().ok()?;
                // Rejects a second owner.
                count.is_none().then(|| count = Some(counted))?;
            }
            Some("fence") => {}
            Some(hold) => {
                let hold_number = u64::from_str_radix(hold, 16).ok()?;
                (format!("{hold_number:x}") == hold && (counted == 1 || hold_number == 0)).then_some(())?;
                holds = holds.checked_add(counted)?;
            }
        }
        let is_last = hash.last_key_value().is_none_or(|(last, _)| last.as_str() < field);
        is_last.then(|| hash.insert(field.to_owned(), value.to_owned()))?;
    }
    (count == Some(holds) && holds > 0 && hash.contains_key("#fence")).then_some(hash)
}

/// Tickets in ascending order, each of a different owner. The holders fit together, unless the capacity was
/// reduced since they were admitted, or one of them has grown.
fn queue(kind: Kind, text: &str) -> Option<Queue> {
    let mut lines = lines(text)?;
    let (capacity, mark) = lines.next()?.split_once(' ')?;
    let set = capacity.strip_prefix('=').filter(|_| kind == Kind::Semaphore);
    let (capacity, mark): (u32, u64) = (number(set.unwrap_or(capacity))?, number(mark)?);
    let mut queue = Queue::new(kind, capacity);
    (queue.mark, queue.is_set) = (mark, set.is_some());
    // The capacity was reduced since, or a holder waits until its increased weight fits.
    let heaviest = if queue.is_set { u32::MAX } else { capacity };
    let most = if queue.is_set || kind == Kind::RwLock { u32::MAX } else { capacity };
    let (mut last, mut used, mut count) = (None, 0_u64, 0);
    for mut line in lines {
        let ticket: u64 = number(word(&mut line)?)?;
        let weight: u32 = number(word(&mut line)?)?;
        let deadline_ms = number(word(&mut line)?)?;
        let owner: Owner = line.parse().ok()?;
        used += if ticket <= mark { u64::from(weight) } else { 0 };
        let fits = last < Some(ticket) && (1..=heaviest).contains(&weight) && used <= u64::from(most);
        fits.then(|| queue.insert(ticket, Ticket { owner, weight, deadline_ms, listens: None }))?;
        (last, count) = (Some(ticket), count + 1);
    }
    (queue.owners() == count).then_some(queue)
}

/// The lines of a text that ends with a newline.
fn lines(text: &str) -> Option<std::str::Split<'_, char>> {
    Some(text.strip_suffix('\n')?.split('\n'))
}

/// The next word of a line, which must be followed by more text.
pub fn word<'a>(line: &mut &'a str) -> Option<&'a str> {
    let (word, after) = line.split_once(' ')?;
    *line = after;
    Some(word)
}

/// Parses a number in canonical form: no sign and no leading zero.
pub fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockName;
    use crate::protocol::{Answer, Fence, Liveness, Now, Op, State, Verb, apply};

    #[test]
    fn the_value_of_a_sole_holder_is_what_its_machine_writes() {
        let queues = [QueueSpec::FAIR, QueueSpec::READER, QueueSpec::WRITER, QueueSpec::permits(7, 3)];
        let specs = [LockSpec::Mutex, LockSpec::Reentrant].into_iter().chain(queues.map(LockSpec::Queue));
        for (spec, hold) in specs.flat_map(|spec| [(spec, 3), (spec, 0xff)]) {
            let (name, owner) = (LockName::in_store("x".into()), Owner::new("me").expect("an owner"));
            let (fence, bind) = (Fence::Assign, Liveness::Process);
            let verb = Verb::Acquire { ttl_ms: 70, hold, fence, wait_ms: None, listens: None, bind };
            let op = Op { name, spec, owner: owner.clone(), request: 0, verb };
            let (mut state, now) = (State::default(), Now { ms: 1_000, unix_us: 5_000 });
            let (answer, _) = apply(&mut state, &mut 0, now, &op);
            assert_eq!(answer, Answer::Held { fence: 5_000 });
            let lock = state.lock.expect("a lock");
            let text = sole(spec, &owner, hold).replace(TOKEN, "5000").replace(END, "1070");
            assert_eq!((kind(&lock.value), encode(&lock.value)), (spec.kind(), text));
            assert_eq!(lock.expires_ms, Some(1_070));
        }
    }
}
