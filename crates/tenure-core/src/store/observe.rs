//! Requests that a client decides and a server only stores, recorded for the oracle of the simulated server.
//! Builds without planted bugs record nothing.

use crate::owner::Owner;
use crate::protocol::{Answer, Notification, Op, State};

/// The requests carried out by one write.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    #[cfg(tenure_planted)]
    told: Vec<Told>,
}

/// A request, its answer, and the state of the lock after it.
#[derive(Clone, Debug)]
pub struct Told {
    /// The request.
    pub op: Op,
    /// Its answer.
    pub answer: Answer,
    /// Waiters that it passed and removed, because their client is gone.
    pub passed: Vec<Owner>,
    /// The notification of the state machine.
    pub wake: Option<Notification>,
    /// The lock after the request.
    pub after: State,
}

impl Notes {
    /// Records a request.
    pub fn add(&mut self, op: &Op, (answer, wake): (&Answer, &Option<Notification>), after: &State) {
        #[cfg(tenure_planted)]
        if UNWRITTEN.with_borrow(Option::is_some) {
            let (op, answer, wake, after) = (op.clone(), answer.clone(), wake.clone(), after.clone());
            self.told.push(Told { op, answer, passed: Vec::new(), wake, after });
        }
        #[cfg(not(tenure_planted))]
        let _ = (self, op, answer, wake, after);
    }

    /// Whether no request is recorded.
    pub fn is_empty(&self) -> bool {
        #[cfg(tenure_planted)]
        return self.told.is_empty();
        #[cfg(not(tenure_planted))]
        true
    }

    /// Records that the last request has removed these waiters.
    pub fn pass(&mut self, passed: &[Owner]) {
        #[cfg(tenure_planted)]
        self.told.last_mut().into_iter().for_each(|told| told.passed.extend_from_slice(passed));
        #[cfg(not(tenure_planted))]
        let _ = (self, passed);
    }

    /// Reports the requests as answered without a write, because they change nothing.
    pub fn unwritten(&self) {
        #[cfg(tenure_planted)]
        self.told.iter().for_each(|told| unwritten(&told.op, &told.answer));
    }

    /// The requests in order.
    #[cfg(tenure_planted)]
    pub fn told(&self) -> &[Told] {
        &self.told
    }
}

/// Reports a request as answered without a write.
pub fn unwritten(op: &Op, answer: &Answer) {
    #[cfg(tenure_planted)]
    UNWRITTEN.with_borrow(|hear| hear.iter().for_each(|hear| hear(op, answer)));
    #[cfg(not(tenure_planted))]
    let _ = (op, answer);
}

/// Callback for requests that are answered without a write.
#[cfg(tenure_planted)]
pub type Unwritten = Box<dyn Fn(&Op, &Answer)>;

#[cfg(tenure_planted)]
thread_local! {
    static UNWRITTEN: std::cell::RefCell<Option<Unwritten>> = const { std::cell::RefCell::new(None) };
}

/// Starts (`Some`) or stops (`None`) recording on this thread.
#[cfg(tenure_planted)]
pub fn record(unwritten: Option<Unwritten>) {
    UNWRITTEN.set(unwritten);
}
