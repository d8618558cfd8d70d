//! Lets a test observe each request to a directory on this thread.

use std::cell::RefCell;

use tenure_core::protocol::{Answer, Data, ExpiringValue, Notification, Op};

/// Receives a request, its answer and notification, and the resulting record.
pub type FileObserver = Box<dyn Fn(&Op, &Answer, Option<&Notification>, Option<&ExpiringValue<Data>>)>;

thread_local! {
    static OBSERVER: RefCell<Option<FileObserver>> = const { RefCell::new(None) };
}

pub(crate) fn applied(
    op: &Op,
    answer: &Answer,
    wake: Option<&Notification>,
    after: impl Fn() -> Option<ExpiringValue<Data>>,
) {
    OBSERVER.with_borrow(|observer| {
        observer.iter().for_each(|observer| observer(op, answer, wake, after().as_ref()));
    });
}

/// Installs an observer of the requests that file stores execute on this thread, in execution order.
pub fn observe(observer: Option<FileObserver>) {
    OBSERVER.set(observer);
}
