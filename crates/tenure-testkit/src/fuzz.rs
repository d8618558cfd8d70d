//! Fuzzing of code that parses external input: a stored corpus, mutated.
//!
//! A check summarizes what it observed of an input in a few words. An input with a new summary is kept and
//! mutated further, which reaches deeper than random noise would, without instrumenting the program. A check
//! that panics, hangs or exceeds the memory limit fails the test and prints the input.
//!
//! Each target runs 100,000 inputs, the same ones every time. With `TENURE_FUZZ=SECONDS` it runs for that
//! long, with different inputs each time. Findings belong in `corpus/TARGET/`, one file per input; these are
//! always tried first.
//!
//! ```no_run
//! use tenure_testkit::fuzz::fuzz;
//!
//! fuzz("doc", &["12", "-1"], &["."], |input| match std::str::from_utf8(input).ok().and_then(|text| text.parse::<i8>().ok()) {
//!     Some(number) => {
//!         assert_eq!(number.to_string().parse(), Ok(number));
//!         "a number".into()
//!     }
//!     None => "no number".into(),
//! });
//! ```
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "its own test, in real time and with a watchdog"
)]

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sim::chooser::Rng;

/// Number of inputs, unless a time is given.
const INPUTS: u64 = 100_000;
/// Time after which an input counts as hanging.
const HANG: Duration = Duration::from_secs(30);
/// Memory limit of the process, in bytes: far more than parsing and the rest of the tests need.
pub const MEMORY: u64 = 1 << 30;
/// Maximum number of kept inputs.
const KEPT: usize = 2_000;
/// Maximum length of an input, in bytes.
const LONGEST: usize = 4_096;

/// Boundary values that parsers of numbers get wrong.
const NUMBERS: [&str; 16] = [
    "0",
    "-0",
    "1",
    "-1",
    "+1",
    "01",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e9",
    "99999999999999999999999",
];

/// Runs `check` on each file of `corpus/TARGET`, on `inputs`, and on mutations of them, into which `words`
/// are inserted at random.
///
/// # Panics
/// If the check does; the input is printed. If an input hangs, the process exits.
pub fn fuzz(target: &str, inputs: &[&str], words: &[&str], check: impl Fn(&[u8]) -> String) {
    let limit = std::env::var("TENURE_FUZZ").ok();
    let limit = limit.map(|limit| Duration::from_secs(limit.parse().expect("TENURE_FUZZ is in seconds")));
    bound_memory();
    let mut corpus: Vec<Vec<u8>> = inputs.iter().map(|input| input.as_bytes().to_vec()).collect();
    corpus.extend(kept(target));
    corpus.push(Vec::new());
    // Regression runs are reproducible; a hunt takes a new seed each time.
    let seed = if limit.is_some() { RandomState::new().hash_one(target) } else { 1 };
    let mut mutator = Mutator { random: Rng::new(seed), words };
    let mut seen = BTreeSet::new();
    let watchdog = Watchdog::new();
    let begun = Instant::now();
    let mut run = |input: &[u8]| {
        watchdog.looks_at(input);
        seen.insert(passes(target, input, &check))
    };
    for input in &corpus {
        run(input);
    }
    let mut count = 0;
    while limit.map_or(count < INPUTS, |limit| begun.elapsed() < limit) {
        let input = mutator.mutated(&corpus);
        if run(&input) && corpus.len() < KEPT {
            corpus.push(input);
        }
        count += 1;
    }
    drop(watchdog);
    println!(
        "{target}: {count} inputs (seed {seed}), {} different outcomes, in {:?}",
        seen.len(),
        begun.elapsed()
    );
}

/// The check's summary, with numbers removed.
fn passes(target: &str, input: &[u8], check: &impl Fn(&[u8]) -> String) -> String {
    let said = catch_unwind(AssertUnwindSafe(|| check(input))).unwrap_or_else(|panic| {
        println!(
            "{target}: this input fails, and belongs into a file in corpus/{target}:\n{}",
            input.escape_ascii()
        );
        resume_unwind(panic)
    });
    said.replace(|char: char| char.is_ascii_digit(), "")
}

/// The corpus on disk, sorted by file name.
///
/// # Panics
/// If a file cannot be read.
pub fn kept(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file of the corpus")).collect()
}

/// Limits the memory of the process, so that an allocation by a bogus length ends the test, not the machine.
///
/// # Panics
/// If the system refuses the limit.
pub fn bound_memory() {
    let Rlimit { current, maximum } = getrlimit(Resource::Data);
    if current.is_none_or(|current| current > MEMORY) {
        let bounded = Rlimit { current: Some(MEMORY), maximum };
        setrlimit(Resource::Data, bounded).expect("a limit may be lowered");
    }
}

struct Mutator<'a> {
    random: Rng,
    words: &'a [&'a str],
}

impl Mutator<'_> {
    fn below(&mut self, below: usize) -> usize {
        self.random.below(below.max(1) as u64) as usize
    }

    fn mutated(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            self.mutate(&mut input, corpus);
        }
        input.truncate(LONGEST);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = at + self.below(input.len() - at + 1);
        match self.below(10) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.below(256) as u8,
            2 => input.insert(at, self.below(256) as u8),
            3 => drop(input.drain(at..end)),
            4 => {
                let part = input[at..end].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, part);
            }
            5 if !self.words.is_empty() => {
                let word = self.words[self.below(self.words.len())];
                input.splice(at..at, word.bytes());
            }
            // Replace a number.
            6 | 7 => {
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let Some(from) = input[at..].iter().position(is_digit).map(|from| at + from) else { return };
                let length = input[from..].iter().take_while(|byte| is_digit(byte)).count();
                let number = NUMBERS[self.below(NUMBERS.len())];
                input.splice(from..from + length, number.bytes());
            }
            8 => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len() + 1);
                input.splice(at..end, other[from..].iter().copied());
            }
            _ => input.truncate(at),
        }
    }
}

/// Exits the process when an input hangs.
struct Watchdog(std::sync::Arc<Watched>);

#[derive(Default)]
struct Watched {
    looked: AtomicU64,
    input: std::sync::Mutex<Vec<u8>>,
    is_over: AtomicBool,
}

impl Watchdog {
    fn new() -> Self {
        let watched = std::sync::Arc::<Watched>::default();
        let dog = std::sync::Arc::clone(&watched);
        std::thread::spawn(move || {
            let (mut seen, mut since) = (0, Instant::now());
            while !dog.is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                let looked = dog.looked.load(Ordering::Relaxed);
                if looked != seen {
                    (seen, since) = (looked, Instant::now());
                } else if since.elapsed() > HANG {
                    let input = dog.input.lock().map(|input| input.escape_ascii().to_string());
                    eprintln!("this input takes for ever:\n{}", input.unwrap_or_default());
                    std::process::abort();
                }
            }
        });
        Self(watched)
    }

    fn looks_at(&self, input: &[u8]) {
        self.0.looked.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut kept) = self.0.input.lock() {
            kept.clear();
            kept.extend_from_slice(input);
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}
