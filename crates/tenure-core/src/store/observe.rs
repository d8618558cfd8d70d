//! The requests that a client decides and a server only writes, as a simulated server reports them
//! to its oracle. Builds without planted bugs note nothing.

use crate::protocol::{Answer, Notification, Op, State};

/// The requests that one write carries out.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    #[cfg(tenure_planted)]
    told: Vec<Told>,
}

/// A request, its answer once it is written, and the lock as the request leaves it.
#[derive(Clone, Debug)]
pub struct Told {
    /// The request.
    pub op: Op,
    /// Its answer.
    pub answer: Answer,
    /// The notification of its machine.
    pub wake: Option<Notification>,
    /// The lock after it.
    pub after: State,
}

impl Notes {
    /// Notes a request.
    pub fn add(&mut self, op: &Op, (answer, wake): (&Answer, &Option<Notification>), after: &State) {
        #[cfg(tenure_planted)]
        if UNWRITTEN.with_borrow(Option::is_some) {
            let (op, answer, wake, after) = (op.clone(), answer.clone(), wake.clone(), after.clone());
            self.told.push(Told { op, answer, wake, after });
        }
        #[cfg(not(tenure_planted))]
        let _ = (self, op, answer, wake, after);
    }

    /// The requests are answered, and nothing is written, because nothing changes.
    pub fn unwritten(&self) {
        #[cfg(tenure_planted)]
        UNWRITTEN.with_borrow(|hear| {
            hear.iter().for_each(|hear| self.told.iter().for_each(|told| hear(&told.op, &told.answer)));
        });
    }

    /// The requests, in their order.
    #[cfg(tenure_planted)]
    pub fn told(&self) -> &[Told] {
        &self.told
    }
}

/// Hears of a request that is answered without a write.
#[cfg(tenure_planted)]
pub type Unwritten = Box<dyn Fn(&Op, &Answer)>;

#[cfg(tenure_planted)]
thread_local! {
    static UNWRITTEN: std::cell::RefCell<Option<Unwritten>> = const { std::cell::RefCell::new(None) };
}

/// Begins to note requests on this thread, or ends it.
#[cfg(tenure_planted)]
pub fn record(unwritten: Option<Unwritten>) {
    UNWRITTEN.set(unwritten);
}
