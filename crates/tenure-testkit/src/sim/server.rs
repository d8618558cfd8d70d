//! The one store behind every process: the machines of `protocol`, on a clock of its own.

use std::collections::BTreeMap;

use tenure::LockName;
use tenure::internals::protocol::{self, Answer, Data, Found, Now, Op, State, Wake};

use super::clock::{Clock, MS, TrueTime};

/// Its wall clock began here, in microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// The server's locks and its clock.
#[derive(Debug, Default)]
pub struct Server {
    clock: Clock,
    locks: BTreeMap<LockName, State>,
}

/// What stands at a lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// As it is written there.
    pub value: &'a str,
    /// The first moment of true time at which it is gone, unless it has no end.
    pub lapses: Option<TrueTime>,
}

impl Server {
    /// An empty server.
    pub fn new(clock: Clock) -> Self {
        Self { clock, locks: BTreeMap::new() }
    }

    fn now(&self, at: TrueTime) -> Now {
        let shown = self.clock.shows(at);
        Now { ms: shown / MS, unix_us: EPOCH_US + shown / 1_000 }
    }

    /// Runs one request at a true time.
    pub fn apply(&mut self, at: TrueTime, op: &Op) -> (Answer, Option<Wake>) {
        let now = self.now(at);
        let state = match self.locks.get_mut(&op.name) {
            Some(state) => state,
            None => self.locks.entry(op.name.clone()).or_default(),
        };
        protocol::apply(state, now, op)
    }

    /// What stands at a lock's key.
    pub fn standing(&self, at: TrueTime, name: &LockName) -> Option<Standing<'_>> {
        let lock = self.locks.get(name)?.lock.as_ref()?;
        // Alive up to and including its last millisecond.
        let lapses = lock.expires_ms.map(|end| self.clock.when((end + 1) * MS));
        match &lock.value {
            Data::Text(value) if lapses.is_none_or(|end| at < end) => Some(Standing { value, lapses }),
            _ => None,
        }
    }

    /// Every lock that is held.
    pub fn list(&self, at: TrueTime, prefix: &str) -> Vec<(LockName, Found)> {
        let now = self.now(at);
        let ours = self.locks.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        ours.filter_map(|(name, state)| Some((name.clone(), protocol::found(state, now)?))).collect()
    }

    /// Starts again with nothing.
    pub fn forget(&mut self) {
        self.locks.clear();
    }
}
