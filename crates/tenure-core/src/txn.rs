//! The course of requests about a lock whose store only keeps its value: read the value, run the machine,
//! write the result if the value is unchanged.
//!
//! `cas` and `rows` carry it out, each with its own reads and writes. A store that runs the machine where the
//! value lives has no use for it.

use std::collections::VecDeque;
use std::mem;

use crate::planted::{Bug, planted};

/// Maximum requests per write.
const TOGETHER: usize = 256;

/// Decides when the value is read, and which answers are final.
///
/// A write whose outcome is unknown ends it: only the engine knows whether its requests may be repeated, and
/// the store sends no other write until that one can no longer take effect.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Txn {
    value: TxnValue,
    must_write: bool,
}

/// The value on which the machine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TxnValue {
    /// The client may remember it from an earlier request.
    #[default]
    Remembered,
    /// It may be outdated.
    Old,
    /// It was read since the requests began.
    Read,
}

/// What follows a run of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The answers are final, and nothing is written.
    Answer,
    /// The answers are final once the result is written. The write compares, so the value need not be read.
    Write,
    /// The machine runs again.
    Again,
}

impl Txn {
    /// For requests that do not trust a remembered value.
    pub(crate) fn unread() -> Self {
        Self { value: TxnValue::Old, must_write: false }
    }

    /// Begins a run of the machine. Returns whether the value has to be read first.
    pub(crate) fn begin(&mut self) -> bool {
        let value = self.value;
        if value == TxnValue::Remembered {
            self.value = TxnValue::Old;
        }
        value == TxnValue::Old
    }

    /// The current value was read, or a write that did not apply has returned it.
    pub(crate) fn read(&mut self) {
        self.value = TxnValue::Read;
    }

    /// The value that was read has changed meanwhile.
    pub(crate) fn outdated(&mut self) {
        self.value = TxnValue::Old;
    }

    /// Ends a run. `changes` says whether there is anything to write. If the write does not apply, the machine
    /// runs again.
    pub(crate) fn ran(&mut self, changes: bool) -> Verdict {
        let value = mem::replace(&mut self.value, TxnValue::Old);
        if changes || self.must_write {
            return Verdict::Write;
        }
        // Nobody vouches for a remembered value that no write has compared.
        let is_final = value == TxnValue::Read || planted(Bug::TxnMemoryAnswers);
        if is_final { Verdict::Answer } else { Verdict::Again }
    }

    /// Answers that nobody wrote do not stand, because a hold has expired meanwhile. Only a write confirms
    /// them, even one of the same value.
    pub(crate) fn unconfirmed(&mut self) {
        self.must_write = !planted(Bug::TxnLapsedUnwritten);
    }

    /// Whether to write even the same value.
    pub(crate) fn must_write(&self) -> bool {
        self.must_write
    }
}

/// Takes the requests that the next write carries out: the first ones whose `key` is the same, or a single one
/// without a key.
pub(crate) fn next_batch<T, K: PartialEq>(queue: &mut VecDeque<T>, key: impl Fn(&T) -> Option<K>) -> Vec<T> {
    let first = queue.front().and_then(&key);
    let alike = queue.iter().take(TOGETHER).take_while(|request| first.is_some() && key(request) == first);
    let count = alike.count().max(1).min(queue.len());
    queue.drain(..count).collect()
}

#[cfg(all(test, tenure_planted))]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{DefaultHasher, Hash, Hasher};

    use super::*;
    use crate::name::LockName;
    use crate::owner::Owner;
    use crate::planted::plant;
    use crate::protocol::{self, Answer, Fence, Liveness, LockSpec, Now, Op, ReleaseScope, State, Verb};

    /// A lock, and the last token.
    type Value = (State, u64);

    #[derive(Clone, Copy, Debug)]
    enum CallerPhase {
        Begins,
        Runs,
        /// The reply to a write was lost.
        Unknown,
        Over,
    }

    #[derive(Clone, Debug)]
    struct Caller {
        txn: Txn,
        phase: CallerPhase,
        /// The value that it knows, and the current one when it began.
        known: usize,
        began: usize,
        /// A write that may still arrive.
        late: Option<Value>,
        /// An answer without a write did not stand.
        is_doubted: bool,
    }

    #[derive(Clone, Debug)]
    struct World {
        /// Every value so far; the last one is current.
        values: Vec<Value>,
        callers: Vec<Caller>,
        /// How many more requests, replies and answers may be lost.
        losses: u32,
    }

    fn begun(known: usize, began: usize) -> Caller {
        Caller {
            txn: Txn::default(),
            phase: CallerPhase::Begins,
            known,
            began,
            late: None,
            is_doubted: false,
        }
    }

    fn run(value: &Value, op: &Op) -> (Answer, Value) {
        let (mut state, mut last) = value.clone();
        let (answer, _) = protocol::apply(&mut state, &mut last, Now { ms: 1_000, unix_us: 0 }, op);
        (answer, (state, last))
    }

    impl World {
        /// Answers a caller. The answer must be one that the store would have given at a moment between request
        /// and answer.
        fn answer(mut self, at: usize, op: &Op, answer: &Answer) -> Result<Self, String> {
            let (values, caller) = (&self.values, &mut self.callers[at]);
            let is_right = |at: usize| {
                let (right, after) = run(&values[at], op);
                let is_written = values.get(at + 1) == Some(&after);
                right == *answer && (is_written || after == values[at] && !caller.is_doubted)
            };
            if !(caller.began..values.len()).any(is_right) {
                return Err(format!("{answer:?} to {caller:?}; values: {values:?}"));
            }
            caller.phase = CallerPhase::Over;
            Ok(self)
        }

        /// The worlds after the next step of a caller.
        fn next(&self, at: usize, op: &Op) -> Result<Vec<Self>, String> {
            let (caller, last) = (&self.callers[at], self.values.len() - 1);
            let with = |written: Option<&Value>, change: &dyn Fn(&mut Caller)| {
                let mut world = self.clone();
                world.values.extend(written.cloned());
                change(&mut world.callers[at]);
                world
            };
            let mut worlds = Vec::new();
            if let Some(late) = &caller.late {
                worlds.push(with((caller.known == last).then_some(late), &|caller| caller.late = None));
            }
            let (answer, after) = run(&self.values[caller.known], op);
            let mut txn = caller.txn;
            match caller.phase {
                CallerPhase::Begins => worlds.push(with(None, &|caller| {
                    if caller.txn.begin() {
                        caller.known = last;
                        caller.txn.read();
                    }
                    caller.phase = CallerPhase::Runs;
                })),
                // The engine repeats the request, and the store first makes sure that the write is not late.
                CallerPhase::Unknown => {
                    worlds.push(with(None, &|caller| *caller = begun(caller.known, last)))
                }
                CallerPhase::Over => {}
                CallerPhase::Runs => {
                    let verdict = txn.ran(after != self.values[caller.known]);
                    let losses = self.losses.checked_sub(1);
                    let to = |written: Option<&Value>, phase: CallerPhase| {
                        with(written, &|caller| (caller.txn, caller.phase) = (txn, phase))
                    };
                    let lost = |world: Self| losses.map(|losses| Self { losses, ..world });
                    match verdict {
                        Verdict::Again => worlds.push(to(None, CallerPhase::Begins)),
                        Verdict::Answer => {
                            worlds.push(to(None, CallerPhase::Over).answer(at, op, &answer)?);
                            let mut doubted = to(None, CallerPhase::Begins);
                            doubted.callers[at].txn.unconfirmed();
                            doubted.callers[at].is_doubted = true;
                            worlds.extend(lost(doubted));
                        }
                        Verdict::Write if caller.known < last => {
                            let mut told = to(None, CallerPhase::Begins);
                            told.callers[at].known = last;
                            told.callers[at].txn.read();
                            worlds.extend([to(None, CallerPhase::Begins), told]);
                        }
                        Verdict::Write => {
                            worlds.push(to(Some(&after), CallerPhase::Over).answer(at, op, &answer)?);
                            let mut late = to(None, CallerPhase::Unknown);
                            late.callers[at].late = Some(after.clone());
                            worlds.extend(
                                [to(Some(&after), CallerPhase::Unknown), late].into_iter().filter_map(lost),
                            );
                        }
                    }
                }
            }
            Ok(worlds)
        }
    }

    /// Explores every order of steps, conflicts and losses, from every combination of remembered values. Returns
    /// the number of worlds.
    fn explore(values: &[Value], ops: &[Op], losses: u32) -> Result<usize, String> {
        let last = values.len() - 1;
        let mut worlds = vec![World { values: values.to_vec(), callers: Vec::new(), losses }];
        for _ in ops {
            let with = |world: World| {
                (0..=last).map(move |known| {
                    let callers = world.callers.iter().cloned().chain([begun(known, last)]);
                    World { callers: callers.collect(), ..world.clone() }
                })
            };
            worlds = worlds.into_iter().flat_map(with).collect();
        }
        let mut seen = BTreeSet::new();
        while let Some(world) = worlds.pop() {
            let mut hasher = DefaultHasher::new();
            format!("{world:?}").hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                for (at, op) in ops.iter().enumerate() {
                    worlds.extend(world.next(at, op)?);
                }
            }
        }
        Ok(seen.len())
    }

    #[test]
    fn every_answer_is_one_that_the_store_would_give() {
        let name = LockName::in_store("a".into());
        let [a, b] = ["a", "b"].map(|label| Owner::new(label).expect("an owner"));
        let op = |owner: &Owner, verb| {
            let (name, owner) = (name.clone(), owner.clone());
            Op { name, spec: LockSpec::Mutex, owner, request: 0, verb }
        };
        let (hold, fence, bind) = (0, Fence::Assign, Liveness::Process);
        let acquire = Verb::Acquire { ttl_ms: 9, hold, fence, wait_ms: None, listens: None, bind };
        let renew = Verb::Renew { ttl_ms: 9, hold, bind: None, weight: None };
        let release = |whose| Verb::Release { hold, fence, whose };
        let free = Value::default();
        let (_, held) = run(&free, &op(&a, acquire.clone()));
        let (_, left) = run(&held, &op(&a, release(ReleaseScope::Own)));
        let two = [op(&a, acquire.clone()), op(&b, acquire.clone())];
        let three = [op(&a, renew), op(&b, release(ReleaseScope::Any)), op(&b, acquire)];
        let explored = || {
            let two = explore(&[free.clone(), held.clone(), left.clone()], &two, 3)?;
            Ok::<_, String>((two, explore(&[free.clone(), held.clone()], &three, 2)?))
        };
        assert_eq!(explored(), Ok((2_350, 11_339)));
        for bug in [Bug::TxnMemoryAnswers, Bug::TxnLapsedUnwritten] {
            plant(Some(bug));
            let caught = explored();
            plant(None);
            assert!(caught.is_err(), "{bug:?} is not seen");
        }
    }
}
