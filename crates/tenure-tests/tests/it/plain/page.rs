//! Parses book/contribute/protocol.md: keys, arguments and their order, replies, channels, headers and
//! commands.

use std::sync::LazyLock;

use super::{MUTEX, QUEUE, REENTRANT};

const PAGE: &str = include_str!("../../../../../book/contribute/protocol.md");
/// The page with single spaces, so that line breaks do not matter.
static PROSE: LazyLock<String> = LazyLock::new(|| PAGE.split_whitespace().collect::<Vec<_>>().join(" "));

/// The script, and its column in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    Mutex,
    Reentrant,
    Queue,
}

impl Machine {
    pub(crate) fn script(self) -> &'static str {
        match self {
            Self::Mutex => MUTEX,
            Self::Reentrant => REENTRANT,
            Self::Queue => QUEUE,
        }
    }
}

/// A part of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) is_int: bool,
    /// It may occur several times.
    pub(crate) repeats: bool,
    /// It is this literal word.
    pub(crate) is_literal: bool,
}

/// The rows of the table whose header begins like this, cell by cell.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let start = PAGE.find(head).unwrap_or_else(|| panic!("no such table: {head}"));
    let rows = PAGE[start..].lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The texts in backticks.
fn quoted(text: &'static str) -> Vec<&'static str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The text in backticks after these words.
pub(crate) fn quoted_after(words: &str) -> &'static str {
    quoted(behind(words)).first().expect("something in backticks")
}

fn behind(words: &str) -> &'static str {
    let at = PROSE.find(words).unwrap_or_else(|| panic!("the page does not say: {words}"));
    &PROSE[at + words.len()..]
}

/// The word after these.
pub(crate) fn word_after(words: &str) -> &'static str {
    behind(words)
        .split(|end: char| end.is_whitespace() || ",.;".contains(end))
        .find(|word| !word.is_empty())
        .expect("a word")
}

fn request(verb: &str) -> Vec<&'static str> {
    let rows = table("| verb | KEYS |").into_iter();
    rows.into_iter().find(|row| quoted(row[0]) == [verb]).unwrap_or_else(|| panic!("no verb: {verb}"))
}

/// The names of the keys of a request without a ballot.
pub(crate) fn keys(verb: &str) -> Vec<&'static str> {
    request(verb)[1].split(", ").filter(|key| !key.starts_with("and ")).collect()
}

/// The names of a request's arguments after the verb, the owner and the number; the last may be repeated.
pub(crate) fn arguments(machine: Machine, verb: &str) -> Vec<&'static str> {
    request(verb)[2 + machine as usize].split_whitespace().collect()
}

/// The leading arguments of each request.
pub(crate) fn first_arguments() -> Vec<&'static str> {
    let said = behind("All arguments begin with ").split(':').next().expect("a sentence");
    said.split([',', ' ']).filter(|word| ["verb", "owner", "request"].contains(word)).collect()
}

/// A lock's key with its ballot and channel, from the page's examples of each form of name.
pub(crate) fn side_keys() -> Vec<[&'static str; 3]> {
    let rows = table("| the lock's key | its ballot |").into_iter();
    rows.map(|row| [0, 1, 2].map(|cell| *quoted(row[cell]).last().expect("an example"))).collect()
}

/// The token counter of a database.
pub(crate) fn counter() -> &'static str {
    quoted_after("All locks of a database have one counter of tokens,")
}

/// The suffix of a token drawn for the request.
pub(crate) fn counted() -> &'static str {
    quoted_after("Behind the token stands")
}

/// The channel that announces the end of holds.
pub(crate) fn channel(machine: Machine, name: &str) -> String {
    let [example, _, channel] = plain_row();
    let channel =
        if machine == Machine::Reentrant { quoted_after("in all databases the same:") } else { channel };
    channel.replace(example, name)
}

fn plain_row() -> [&'static str; 3] {
    let plain = side_keys().into_iter().find(|row| row[0].chars().all(|letter| letter.is_ascii_lowercase()));
    plain.expect("a name of letters only")
}

/// The header of a queue and its capacity, for a semaphore with this many permits.
pub(crate) fn header(kind: &str, permits: &str) -> (String, String) {
    let rows = table("| KIND | CAPACITY | weight |");
    let row = rows.iter().find(|row| quoted(row[0]) == [kind]).unwrap_or_else(|| panic!("no kind: {kind}"));
    let capacity = if row[1].parse::<u64>().is_ok() { row[1] } else { permits };
    let header = quoted(behind("| ≤ 0, with the sign turned |"))[0];
    (header.replace("KIND", kind).replace("CAPACITY", capacity), capacity.to_owned())
}

/// The weight of a writer.
pub(crate) fn weight_to_write() -> &'static str {
    let rows = table("| KIND | CAPACITY | weight |");
    let weight = rows.iter().find_map(|row| row[2].strip_suffix(" to write")).expect("a read-write lock");
    weight.rsplit(' ').next().expect("a number")
}

/// The answers that are sent as one string, with their parts.
pub(crate) fn lines() -> Vec<&'static str> {
    let end = "come as one bulk string instead";
    let sentence = PROSE[..PROSE.find(end).expect("a sentence")].rsplit(". ").next().expect("a sentence");
    quoted(sentence)
}

/// The parts of the answer with this word.
pub(crate) fn parts(machine: Machine, word: &str) -> Vec<Part> {
    let rows = table("| word | then | means |");
    let at = rows
        .iter()
        .position(|row| quoted(row[0]) == [word])
        .unwrap_or_else(|| panic!("no such answer: {word}"));
    // A row without a word continues the one above: one for each machine.
    let further = rows[at + 1..].iter().take_while(|row| row[0].is_empty()).count();
    let cell = rows[at + (machine as usize).min(further)][1];
    let cell = match cell.split_once(": ") {
        Some(("reentrant", rest)) if machine == Machine::Reentrant => {
            rest.split(';').next().expect("one part")
        }
        Some(_) => "",
        None => cell,
    };
    cell.split(", ").filter(|part| !part.is_empty()).map(part).collect()
}

fn part(text: &'static str) -> Part {
    let is_int = text.ends_with(" *int*");
    let (repeats, is_literal) = (text.ends_with('…'), text.starts_with('`'));
    let name = text.trim_end_matches(" *int*").trim_matches(['…', '`']);
    Part { name, is_int, repeats, is_literal }
}

/// The three indented commands that acquire a lock.
pub(crate) fn plain_acquisition() -> [Vec<&'static str>; 3] {
    let first = PAGE.lines().position(|line| line.starts_with("    SET lock value ")).expect("the commands");
    let mut commands = PAGE.lines().skip(first).map(|line| line.split_whitespace().collect());
    [(); 3].map(|()| commands.next().expect("three commands"))
}

/// The value of a hold in a queue without waiters.
pub(crate) fn value_of_queue(owner: &str, kind: &str, weight: &str) -> String {
    let rest = quoted_after("is the owner, followed in a queue by");
    let rest = rest.replace("KIND", kind).replace("CAPACITY", &header(kind, "").1).replace("WEIGHT", weight);
    format!("{owner}{rest}")
}

/// The indented command that closes a connection.
pub(crate) fn end_of_a_connection() -> &'static str {
    PAGE.lines().find_map(|line| line.strip_prefix("    CLIENT ").map(|_| line.trim())).expect("a command")
}

/// The commands of a mutex where scripts are forbidden, on any server: the quoted ones in the right column,
/// after the last colon or semicolon. "the same" refers to the left column, before the colon.
pub(crate) fn without_scripts(what: &str) -> Vec<Vec<&'static str>> {
    let rows = table("| | a server with `DELIFEQ`");
    let row = rows.iter().find(|row| row[0] == what).unwrap_or_else(|| panic!("no row: {what}"));
    let (left, right) = (row[1], row[2]);
    let commands = |text: &'static str| quoted(text).into_iter().map(|command| command.split(' ').collect());
    let own = right.rsplit([':', ';']).next().expect("a cell");
    let shared = if right.ends_with("the same") { left.split(':').next().expect("a cell") } else { "" };
    commands(own).chain(commands(shared)).collect()
}
