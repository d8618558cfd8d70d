//! The commands that the scripts and their tests use, with the errors of a real server.

use redis::Value;

use super::data::{Data, Database, Entry, Sorted};
use super::lua::seventeen;
use super::{error, text};

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_FLOAT: &str = "ERR value is not a valid float";

type Answer = Result<Value, &'static str>;

impl Database {
    pub(super) fn run(&mut self, words: &[&[u8]]) -> Value {
        let Some((verb, rest)) = words.split_first() else { return error("ERR no command") };
        let verb = String::from_utf8_lossy(verb).to_uppercase();
        let answer = match (&*verb, rest) {
            ("TIME", []) => {
                let (seconds, micros) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
                Ok(Value::Array(vec![text(seconds.to_string()), text(micros.to_string())]))
            }
            ("PUBLISH" | "SPUBLISH", [channel, message]) => {
                let [channel, message] = [channel, message].map(|bytes| String::from_utf8_lossy(bytes));
                let is_heard = !self.unheard.iter().any(|end| channel.ends_with(end));
                self.published.push((channel.into_owned(), message.into_owned()));
                Ok(Value::Int(is_heard.into()))
            }
            ("INFO", [b"server"]) => Ok(text(format!("# Server\r\nrun_id:{}\r\n", self.run_id))),
            ("DEL" | "UNLINK", keys) => {
                let gone = |key: &&[u8]| self.entry(key).is_some() && self.keys.remove(*key).is_some();
                Ok(Value::Int(keys.iter().copied().filter(gone).count() as i64))
            }
            ("TYPE", [key]) => Ok(Value::SimpleString(
                match self.entry(key).map(|entry| &entry.data) {
                    None => "none",
                    Some(Data::Text(_)) => "string",
                    Some(Data::Hash(_)) => "hash",
                    Some(Data::Sorted(_)) => "zset",
                }
                .into(),
            )),
            ("PTTL", [key]) => {
                let now = self.now_ms();
                Ok(Value::Int(match self.entry(key) {
                    None => -2,
                    Some(Entry { expires_ms: None, .. }) => -1,
                    Some(Entry { expires_ms: Some(end), .. }) => (*end - now) as i64,
                }))
            }
            ("PEXPIRE", [key, ms]) => {
                let now = self.now_ms() as i64;
                integer(ms).map(|ms| self.expire(key, now.saturating_add(ms)))
            }
            ("PEXPIREAT", [key, at]) => integer(at).map(|at| self.expire(key, at)),
            ("GET", [key]) => self.text(key).map(|text| text.map_or(Value::Nil, Value::BulkString)),
            ("MGET", keys) => {
                let text = |key: &&[u8]| self.text(key).ok().flatten().map_or(Value::Nil, Value::BulkString);
                Ok(Value::Array(keys.iter().map(text).collect()))
            }
            ("GETRANGE", [key, from, to]) => self.range_of_text(key, from, to),
            ("SET", [key, value, options @ ..]) => self.set(key, value, options),
            ("INCR", [key]) => self.text(key).and_then(|text| {
                let next = text.map_or(Ok(0), |text| integer(&text))?.checked_add(1).ok_or(NO_INTEGER)?;
                let expires_ms = self.entry(key).and_then(|entry| entry.expires_ms);
                let data = Data::Text(next.to_string().into_bytes());
                self.keys.insert(key.to_vec(), Entry { data, expires_ms });
                Ok(Value::Int(next))
            }),
            (verb, [key, rest @ ..]) if verb.starts_with('H') => self.hash(verb, key, rest),
            (verb, [key, rest @ ..]) if verb.starts_with('Z') => self.sorted(verb, key, rest),
            (verb, _) => return error(&format!("ERR unknown command '{verb}'")),
        };
        answer.unwrap_or_else(error)
    }

    fn expire(&mut self, key: &[u8], at: i64) -> Value {
        let now = self.now_ms() as i64;
        match self.entry(key) {
            None => Value::Int(0),
            Some(_) if at <= now => {
                self.keys.remove(key);
                Value::Int(1)
            }
            Some(entry) => {
                entry.expires_ms = Some(at as u64);
                Value::Int(1)
            }
        }
    }

    fn text(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
        match self.entry(key).map(|entry| &entry.data) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    /// GETRANGE for non-negative bounds.
    fn range_of_text(&mut self, key: &[u8], from: &[u8], to: &[u8]) -> Answer {
        let (from, to) = (integer(from)? as usize, integer(to)? as usize);
        let whole = self.text(key)?.unwrap_or_default();
        Ok(text(whole.get(from..(to + 1).min(whole.len())).unwrap_or_default()))
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Answer {
        let (mut expires_ms, mut gets, mut only_new) = (None, false, false);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match &option.to_ascii_uppercase()[..] {
                b"PX" => {
                    let ms = integer(options.next().ok_or(SYNTAX)?)?;
                    if ms <= 0 {
                        return Err("ERR invalid expire time in 'set' command");
                    }
                    expires_ms = Some(self.now_ms() + ms as u64);
                }
                b"GET" => gets = true,
                b"NX" => only_new = true,
                _ => return Err(SYNTAX),
            }
        }
        let old = if gets { self.text(key)?.map_or(Value::Nil, Value::BulkString) } else { Value::Nil };
        let sets = !only_new || self.entry(key).is_none();
        if sets {
            self.keys.insert(key.to_vec(), Entry { data: Data::Text(value.to_vec()), expires_ms });
        }
        Ok(if gets || !sets { old } else { Value::Okay })
    }

    fn hash(&mut self, verb: &str, key: &[u8], rest: &[&[u8]]) -> Answer {
        let writes = verb == "HSET" || verb == "HINCRBY" || verb == "HSETNX";
        let entry =
            if writes { Some(self.entry_or(key, Data::Hash(Default::default()))) } else { self.entry(key) };
        let mut none = Default::default();
        let hash = match entry.map(|entry| &mut entry.data) {
            None => &mut none,
            Some(Data::Hash(hash)) => hash,
            Some(_) => return Err(WRONG_TYPE),
        };
        let bulk =
            |bytes: Option<&Vec<u8>>| bytes.map_or(Value::Nil, |bytes| Value::BulkString(bytes.clone()));
        let answer = match (verb, rest) {
            ("HGET", [field]) => bulk(hash.get(*field)),
            ("HMGET", fields) => Value::Array(fields.iter().map(|field| bulk(hash.get(*field))).collect()),
            ("HLEN", []) => Value::Int(hash.len() as i64),
            ("HKEYS", []) => {
                Value::Array(hash.keys().map(|field| Value::BulkString(field.clone())).collect())
            }
            ("HGETALL", []) => {
                let pairs = hash.iter().flat_map(|(field, value)| [field, value]);
                Value::Array(pairs.map(|bytes| Value::BulkString(bytes.clone())).collect())
            }
            ("HSET", pairs) if pairs.len() % 2 == 0 => {
                let new = |pair: &&[&[u8]]| hash.insert(pair[0].to_vec(), pair[1].to_vec()).is_none();
                Value::Int(pairs.chunks(2).filter(new).count() as i64)
            }
            ("HDEL", fields) => {
                let gone = fields.iter().filter(|field| hash.remove(**field).is_some()).count();
                Value::Int(gone as i64)
            }
            _ => return Err(SYNTAX),
        };
        self.tidy(key);
        Ok(answer)
    }

    fn sorted(&mut self, verb: &str, key: &[u8], rest: &[&[u8]]) -> Answer {
        let entry = if verb == "ZADD" {
            Some(self.entry_or(key, Data::Sorted(Sorted::default())))
        } else {
            self.entry(key)
        };
        let mut none = Sorted::default();
        let sorted = match entry.map(|entry| &mut entry.data) {
            None => &mut none,
            Some(Data::Sorted(sorted)) => sorted,
            Some(_) => return Err(WRONG_TYPE),
        };
        let score = |member: &[u8]| sorted.score(member).map_or(Value::Nil, |score| text(seventeen(score)));
        let answer = match (verb, rest) {
            ("ZADD", pairs) if pairs.len() % 2 == 0 => {
                let pairs = pairs.chunks(2).map(|pair| Ok((float(pair[0])?, pair[1])));
                let pairs: Vec<(f64, &[u8])> = pairs.collect::<Result<_, &'static str>>()?;
                let new = pairs.into_iter().filter(|(score, member)| sorted.put(member, *score));
                Value::Int(new.count() as i64)
            }
            ("ZREM", members) => {
                let gone = members.iter().filter(|member| sorted.remove(member)).count();
                Value::Int(gone as i64)
            }
            ("ZCARD", []) => Value::Int(sorted.len() as i64),
            ("ZSCORE", [member]) => score(member),
            ("ZRANK", [member]) => {
                let at = sorted.in_order().position(|(known, _)| known == *member);
                at.map_or(Value::Nil, |at| Value::Int(at as i64))
            }
            ("ZMSCORE", members) => Value::Array(members.iter().map(|member| score(member)).collect()),
            ("ZCOUNT", [low, high]) => {
                let (low, high) = (Bound::parse(low)?, Bound::parse(high)?);
                let within = |(_, score): &(&[u8], f64)| low.is_below(*score) && high.is_above(*score);
                Value::Int(sorted.in_order().filter(within).count() as i64)
            }
            ("ZRANGE", [from, to, options @ ..]) => range(sorted, from, to, options)?,
            _ => return Err(SYNTAX),
        };
        self.tidy(key);
        Ok(answer)
    }
}

/// `ZRANGE key from to [BYSCORE] [REV] [LIMIT offset count] [WITHSCORES]`.
fn range(sorted: &Sorted, from: &[u8], to: &[u8], options: &[&[u8]]) -> Answer {
    let (mut by_score, mut reversed, mut limit, mut with_scores) = (false, false, (0, i64::MAX), false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"BYSCORE" => by_score = true,
            b"REV" => reversed = true,
            b"WITHSCORES" => with_scores = true,
            b"LIMIT" => {
                let mut number = || integer(options.next().ok_or(SYNTAX)?);
                limit = (number()?, number()?);
            }
            _ => return Err(SYNTAX),
        }
    }
    let chosen: Vec<(&[u8], f64)> = if by_score {
        let (low, high) = if reversed { (to, from) } else { (from, to) };
        let (low, high) = (Bound::parse(low)?, Bound::parse(high)?);
        let within = sorted.in_order().filter(|(_, score)| low.is_below(*score) && high.is_above(*score));
        let within: Vec<_> = if reversed { within.rev().collect() } else { within.collect() };
        let count = usize::try_from(limit.1).unwrap_or(usize::MAX);
        within.into_iter().skip(limit.0 as usize).take(count).collect()
    } else {
        let length = sorted.len() as i64;
        let at = |rank: i64| if rank < 0 { rank + length } else { rank };
        let (first, last) = (at(integer(from)?).max(0), at(integer(to)?));
        let all: Vec<_> =
            if reversed { sorted.in_order().rev().collect() } else { sorted.in_order().collect() };
        all.into_iter().skip(first as usize).take((last - first + 1).max(0) as usize).collect()
    };
    let words = chosen.into_iter().flat_map(|(member, score)| {
        let score = with_scores.then(|| text(seventeen(score)));
        [Some(text(member)), score]
    });
    Ok(Value::Array(words.flatten().collect()))
}

/// A bound of a score range: `7`, `(7`, `-inf`, `+inf`.
struct Bound {
    at: f64,
    is_open: bool,
}

impl Bound {
    fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let (text, is_open) = match text.strip_prefix(b"(") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let at = float(text).map_err(|_| "ERR min or max is not a float")?;
        Ok(Self { at, is_open })
    }

    fn is_below(&self, score: f64) -> bool {
        score > self.at || (!self.is_open && score == self.at)
    }

    fn is_above(&self, score: f64) -> bool {
        score < self.at || (!self.is_open && score == self.at)
    }
}

fn integer(text: &[u8]) -> Result<i64, &'static str> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NO_INTEGER)
}

fn float(text: &[u8]) -> Result<f64, &'static str> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NO_FLOAT)
}
