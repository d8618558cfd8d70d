//! The source of all choices in a schedule.

/// A small, fast generator (SplitMix64), good enough for exploration. Nothing here is secret.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose output depends on the seed alone.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below this one.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A choice that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The chosen alternative, from 0.
    pub chosen: u32,
    /// The number of alternatives.
    pub among: u32,
}

/// Makes and records choices.
#[derive(Clone, Debug)]
pub struct Chooser {
    source: Source,
    made: Vec<Choice>,
}

#[derive(Clone, Debug)]
enum Source {
    Seeded(Rng),
    Replay(Vec<u32>),
}

impl Chooser {
    /// Chooses by a seed.
    pub fn seeded(seed: u64) -> Self {
        Self { source: Source::Seeded(Rng::new(seed)), made: Vec::with_capacity(512) }
    }

    /// Replays these choices, then always chooses the first alternative.
    pub fn replay(choices: Vec<u32>) -> Self {
        Self { source: Source::Replay(choices), made: Vec::new() }
    }

    /// Chooses one of `among` alternatives, from 0. A choice with a single alternative is not recorded.
    pub fn choose(&mut self, among: u32) -> u32 {
        if among <= 1 {
            return 0;
        }
        let chosen = match &mut self.source {
            // The high bits times the range: unbiased enough, and no division.
            Source::Seeded(rng) => (((rng.next() >> 32) * u64::from(among)) >> 32) as u32,
            Source::Replay(choices) => choices.get(self.made.len()).map_or(0, |choice| choice % among),
        };
        self.made.push(Choice { chosen, among });
        chosen
    }

    /// All choices so far.
    pub fn made(&self) -> &[Choice] {
        &self.made
    }
}

/// The next schedule in a depth-first walk over all of them, given the choices of the last one; `None` after
/// the last.
pub fn next_in_order(made: &[Choice]) -> Option<Vec<u32>> {
    let turn = made.iter().rposition(|choice| choice.chosen + 1 < choice.among)?;
    let mut next: Vec<u32> = made[..=turn].iter().map(|choice| choice.chosen).collect();
    next[turn] += 1;
    Some(next)
}
