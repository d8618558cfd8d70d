//! What a test hears of each request to a directory, on this thread.

use std::cell::RefCell;

use tenure_core::protocol::{Answer, Data, Entry, Notification, Op};

/// Hears what a request has made of a record of a directory.
pub type Observer = Box<dyn Fn(&Op, &Answer, Option<&Notification>, Option<&Entry<Data>>)>;

thread_local! {
    static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

pub(crate) fn applied(
    op: &Op,
    answer: &Answer,
    wake: Option<&Notification>,
    after: impl Fn() -> Option<Entry<Data>>,
) {
    OBSERVER.with_borrow(|observer| {
        observer.iter().for_each(|observer| observer(op, answer, wake, after().as_ref()));
    });
}

/// Lets a test hear of each request that stores in directories carry out on this thread, in
/// the order in which they do.
pub fn observe(observer: Option<Observer>) {
    OBSERVER.set(observer);
}
