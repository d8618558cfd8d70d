//! Compares the fake server with a real one: the same random commands get the same replies, on a shared
//! clock.

use tenure_testkit::fake_redis::Keyspace;
use tenure_testkit::servers::{Server, Value};
use tenure_testkit::sim::chooser::Rng;

const COMMANDS: usize = 60_000;

struct Dice(Rng);

impl Dice {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[(self.0.next() >> 33) as usize % of.len()]
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.0.next() >> 33) % bound
    }

    fn key(&mut self) -> &'static str {
        self.one(&["a", "b", "c"])
    }

    fn field(&mut self) -> &'static str {
        self.one(&["x", "y", "#fence", "!x", "+y"])
    }

    fn score(&mut self) -> &'static str {
        self.one(&["0", "-3", "7", "8000000000000001", "1800000000000000", "1e10", "1.5", "-0"])
    }

    fn bound(&mut self) -> &'static str {
        self.one(&["-inf", "+inf", "(7", "7", "1e10", "(1e14", "8e15", "(8e15"])
    }

    /// A command as the scripts use it, on a key of any type.
    fn command(&mut self, now_ms: u64) -> Vec<String> {
        let (key, field, other) = (self.key(), self.field(), self.field());
        let ms = self.one(&["1", "40", "500", "0", "-1", "x"]);
        let rank = |dice: &mut Self| dice.one(&["0", "1", "2", "-1", "-2", "5"]);
        let words: Vec<&str> = match self.below(30) {
            0 => vec![self.one(&["GET", "MGET"]), key],
            1 => vec!["SET", key, field, "PX", ms],
            2 => vec!["SET", key, field, "PX", "100", "GET"],
            3 => vec!["SET", key, field, "NX", "PX", "300"],
            4 => vec!["GETRANGE", key, "0", self.one(&["0", "2", "1023"])],
            5 => vec!["DEL", key],
            6 => vec!["UNLINK", key, "b"],
            7 => vec!["TYPE", key],
            8 | 9 => vec!["PTTL", key],
            10 => vec!["PEXPIRE", key, ms],
            11 => {
                let at = now_ms + self.below(300) - 20;
                return ["PEXPIREAT", key, &at.to_string()].map(str::to_owned).into();
            }
            12 => vec!["HGET", key, field],
            13 => vec!["HMGET", key, field, other],
            14 => vec!["HSET", key, field, "1", other, "2"],
            15 => vec!["HDEL", key, field, other],
            16 => vec!["HLEN", key],
            17 | 18 => vec!["ZADD", key, self.score(), field],
            19 => vec!["ZADD", key, self.score(), field, self.score(), other],
            20 => vec!["ZREM", key, field, other],
            21 => vec!["ZCARD", key],
            22 => vec!["ZSCORE", key, field],
            23 => vec!["ZMSCORE", key, field, other],
            24 => vec!["ZCOUNT", key, self.bound(), self.bound()],
            25 => vec!["ZRANGE", key, rank(self), rank(self), "WITHSCORES"],
            26 => vec!["ZRANGE", key, self.bound(), self.bound(), "BYSCORE", "WITHSCORES"],
            27 => vec!["ZRANGE", key, self.bound(), self.bound(), "BYSCORE", "LIMIT", rank(self), "2"],
            28 => {
                let (high, low) = (self.bound(), self.bound());
                vec!["ZRANGE", key, high, low, "BYSCORE", "REV", "LIMIT", "0", "1", "WITHSCORES"]
            }
            _ => vec!["TIME"],
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

#[test]
fn the_fake_server_answers_as_a_real_one() {
    let (server, keyspace, mut dice) = (Server::with_clock(), Keyspace::new(), Dice(Rng::new(1)));
    let mut client = server.client().expect("a connection");
    let mut now_us = 1_800_000_000_000_000;
    let mut errors = 0;
    for number in 0..COMMANDS {
        if number % 4 == 0 {
            now_us += dice.below(30_000);
            server.clock().freeze_us(now_us);
            keyspace.set_clock(now_us);
        }
        let words = dice.command(now_us / 1_000);
        let bytes: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        let ours = Value::from(keyspace.command(&bytes));
        let theirs = client.command(&words).expect("an answer");
        errors += usize::from(matches!(theirs, Value::Error(_)));
        assert_eq!(ours, theirs, "command {number}: {words:?}");
    }
    assert!(errors > COMMANDS / 100, "errors are compared as well, and there were only {errors}");
}

#[test]
fn a_script_sees_the_values_that_a_real_server_shows_it() {
    let script = "
        local function show(value)
          if type(value) ~= 'table' then
            return type(value) .. ':' .. tostring(value)
          end
          if value.err or value.ok then
            return (value.err and 'err:' or 'ok:') .. (value.err or value.ok)
          end
          local all = {}
          for i = 1, #value do
            all[i] = show(value[i])
          end
          return '{' .. table.concat(all, ' ') .. '}'
        end
        local shown, call = {}, redis.pcall
        shown[1] = show(call('SET', KEYS[1], 'v', 'PX', 100))
        shown[2] = show(call('SET', KEYS[1], 1800000000000000 + 7, 'GET'))
        shown[3] = show(call('GET', KEYS[1]))
        shown[4] = show(call('ZADD', KEYS[1], 1, 'm'))
        shown[5] = show(call('GET', 'nothing'))
        shown[6] = show(call('ZADD', KEYS[2], 8e15 + 3, ARGV[1], -1800000000000001, 'n', 2 ^ 20, 'o'))
        shown[7] = show(call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'))
        shown[8] = show(call('ZMSCORE', KEYS[2], 'n', 'nothing'))
        shown[9] = show(call('TYPE', KEYS[2]))
        shown[10] = show(call('PTTL', KEYS[2]))
        return { shown, 3.9, false, 'text', { ok = 'FINE' } , nil, 'unseen' }";
    let (server, keyspace) = (Server::start(), Keyspace::new());
    let (ours, _) = keyspace.script(script, &["k", "z"], &["member"]);
    let mut client = server.client().expect("a connection");
    let theirs = client.command(&["EVAL", script, "2", "k", "z", "member"]).expect("an answer");
    assert_eq!(Value::from(ours), theirs);
}
