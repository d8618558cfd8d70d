//! Calls of JavaScript, and the way of their results back: a thread's event loop wakes once for all results that are
//! there by then.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use napi::bindgen_prelude::{Array, Buffer, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Status};
use napi_derive::napi;
use tenure::bindings::Report;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::engine::{flush, lock, runtime, settle};
use crate::error::{Failure, Result, Time, duration, invalid};
use crate::events;
use crate::hold::Slot;
use crate::value::Value;

/// The outcome of a call.
pub type Outcome = std::result::Result<Value, Failure>;

// What a message is.
const DONE: u32 = 0;
const FAILED: u32 = 1;
const ASKED: u32 = 2;
const EVENT: u32 = 3;

/// How long the end of a worker waits for a call that is in progress.
const SETTLE: Duration = Duration::from_secs(1);

/// What JavaScript answers: a value, if there is one, and how long it is to be kept.
pub type Answer = (Option<Vec<u8>>, Option<Duration>);

/// JavaScript failed to answer. It keeps the error.
pub struct Refused;

struct Call {
    client: u32,
    abort: AbortHandle,
}

type Wake = ThreadsafeFunction<(), (), (), Status, false, true>;

/// The calls and holds of one thread.
pub struct Thread {
    wake: Wake,
    queue: Mutex<Vec<(u32, u32, Value)>>,
    calls: Mutex<BTreeMap<u32, Call>>,
    questions: Mutex<BTreeMap<u32, oneshot::Sender<std::result::Result<Answer, Refused>>>>,
    holds: Mutex<BTreeMap<u64, Weak<Slot>>>,
    next: AtomicU64,
    is_over: AtomicBool,
}

static THREADS: Mutex<Vec<Weak<Thread>>> = Mutex::new(Vec::new());

/// Reports the end of a call, also of one that is cancelled or panics.
struct Reporter {
    thread: Arc<Thread>,
    id: u32,
    outcome: Option<Outcome>,
}

impl Reporter {
    fn end(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let (kind, value) = match self.outcome.take() {
            Some(Ok(value)) => (DONE, value),
            Some(Err(failure)) => (FAILED, Value::of(failure)),
            None if std::thread::panicking() => {
                (FAILED, Value::of(Failure::new("unknown", "the call panicked")))
            }
            None => (FAILED, Value::of(Failure::new("closed", "the locks are closed"))),
        };
        self.thread.push(self.id, kind, value);
    }
}

impl Thread {
    fn push(&self, id: u32, kind: u32, value: Value) {
        let mut queue = lock(&self.queue);
        queue.push((id, kind, value));
        let is_first = queue.len() == 1;
        drop(queue);
        if is_first {
            self.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }

    pub fn tell(&self, event: Value) {
        self.push(0, EVENT, event);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Starts a call of a client.
    pub fn call<F: Future<Output = Outcome> + Send + 'static>(
        self: &Arc<Self>,
        client: u32,
        id: u32,
        work: F,
    ) {
        let reporter = Reporter { thread: Arc::clone(self), id, outcome: None };
        let task = runtime().spawn(async move { reporter.end(work.await) });
        lock(&self.calls).insert(id, Call { client, abort: task.abort_handle() });
    }

    /// Asks JavaScript during a call, under a lock with this token.
    pub async fn ask(&self, id: u32, what: &str, fence: Option<u64>) -> std::result::Result<Answer, Refused> {
        let answer = self.answer(id);
        self.push(id, ASKED, Value::Report(Report::List(vec![what.into(), fence.map(Report::Token).into()])));
        answer.await
    }

    /// Waits for what JavaScript says during a call without being asked.
    pub fn answer(&self, id: u32) -> impl Future<Output = std::result::Result<Answer, Refused>> + use<> {
        let (sender, answer) = oneshot::channel();
        lock(&self.questions).insert(id, sender);
        async move { answer.await.unwrap_or(Err(Refused)) }
    }

    pub fn next_hold(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn add_hold(&self, slot: &Arc<Slot>) {
        lock(&self.holds).insert(slot.id, Arc::downgrade(slot));
        // Later than `release_holds` of the end.
        if self.is_over() {
            slot.clear();
        }
    }

    /// Forgets a hold that has been released.
    pub fn remove_hold(&self, id: u64) {
        lock(&self.holds).remove(&id);
    }

    /// Has JavaScript look whether the process is idle now.
    pub fn told_of_drop(&self) {
        if !self.is_over() {
            self.push(0, DONE, Value::NULL);
        }
    }

    /// Cancels the calls of a client, or of all clients.
    pub fn cancel_calls(&self, client: Option<u32>) {
        for call in lock(&self.calls).values() {
            if client.is_none_or(|client| call.client == client) {
                call.abort.abort();
            }
        }
    }

    /// Releases the holds of a client, or of all clients, in the background.
    pub fn release_holds(&self, client: Option<u32>) {
        let held: Vec<_> = lock(&self.holds).values().filter_map(Weak::upgrade).collect();
        for slot in held {
            if client.is_none_or(|client| slot.clients.contains(&client)) {
                slot.clear();
            }
        }
    }
}

/// Ends all that these threads wait for and hold. Blocks until their calls have ended, for at most `most`.
fn end(threads: &[Arc<Thread>], most: Duration) {
    // Waiters first: a release would grant its lock to one of them.
    for thread in threads {
        thread.is_over.store(true, Ordering::Release);
        thread.cancel_calls(None);
    }
    settle(most);
    for thread in threads {
        thread.release_holds(None);
        lock(&thread.questions).clear();
    }
}

/// The calls of one thread of JavaScript.
#[napi]
pub struct Channel {
    thread: Arc<Thread>,
}

impl Channel {
    pub fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }
}

#[napi]
impl Channel {
    /// `wake` is called when there is something to `drain`. It keeps no process alive.
    #[napi(constructor)]
    pub fn new(env: Env, wake: Function<'_, (), ()>) -> Result<Self> {
        let failed = |error: napi::Error| invalid(error.reason.as_str());
        let thread = Arc::new(Thread {
            wake: wake.build_threadsafe_function::<()>().weak::<true>().build().map_err(failed)?,
            queue: Mutex::default(),
            calls: Mutex::default(),
            questions: Mutex::default(),
            holds: Mutex::default(),
            next: AtomicU64::new(1),
            is_over: AtomicBool::new(false),
        });
        // For a worker that is terminated; others close before.
        env.add_env_cleanup_hook(Arc::clone(&thread), |thread| end(&[thread], SETTLE)).map_err(failed)?;
        let mut threads = lock(&THREADS);
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(&thread));
        events::listen(&thread);
        Ok(Self { thread })
    }

    /// Messages as `[id, what, value, …]`: `what` is 0 for the result of a call, 1 for its failure, 2 for a question
    /// with its text and a token as `value`, and 3 for an event.
    #[napi(ts_return_type = "Array<any>")]
    pub fn drain<'env>(&self, env: &'env Env) -> napi::Result<Array<'env>> {
        let messages = std::mem::take(&mut *lock(&self.thread.queue));
        let mut all = env.create_array(messages.len() as u32 * 3)?;
        let mut at = 0;
        for (id, kind, value) in messages {
            if kind < ASKED {
                lock(&self.thread.calls).remove(&id);
                lock(&self.thread.questions).remove(&id);
            }
            all.set(at, id)?;
            all.set(at + 1, kind)?;
            all.set(at + 2, value.into_js(env)?)?;
            at += 3;
        }
        Ok(all)
    }

    /// Ends a call: what it acquired is released.
    #[napi]
    pub fn cancel(&self, id: u32) {
        if let Some(call) = lock(&self.thread.calls).get(&id) {
            call.abort.abort();
        }
    }

    /// Answers the question of a call, or ends its wait.
    #[napi]
    pub fn answer(&self, id: u32, bytes: Option<Buffer>, ttl: Option<Time>) -> Result<()> {
        let ttl = ttl.map(|ttl| duration("ttl", &ttl)).transpose()?;
        self.reply(id, Ok((bytes.map(|bytes| bytes.to_vec()), ttl)));
        Ok(())
    }

    /// Answers that JavaScript has failed.
    #[napi]
    pub fn refuse(&self, id: u32) {
        self.reply(id, Err(Refused));
    }

    fn reply(&self, id: u32, answer: std::result::Result<Answer, Refused>) {
        if let Some(question) = lock(&self.thread.questions).remove(&id) {
            let _ = question.send(answer);
        }
    }

    /// Whether the thread holds a lock.
    #[napi]
    pub fn is_holding(&self) -> bool {
        lock(&self.thread.holds).values().any(|slot| slot.upgrade().is_some_and(|slot| slot.is_held()))
    }

    /// Cancels all calls, releases all locks, and blocks until that is done, for at most `time` milliseconds: of this
    /// thread, or of all.
    #[napi]
    pub fn close(&self, time: f64, all: bool) -> Result<()> {
        let most = duration("time", &Time::A(time))?;
        if all {
            close_all(most)
        } else {
            close(&[Arc::clone(&self.thread)], most)
        }
        Ok(())
    }
}

fn close(threads: &[Arc<Thread>], most: Duration) {
    end(threads, most / 2);
    flush(most / 2);
}

/// Cancels all calls and releases all locks of the process, and blocks until that is done, for at most `most`.
pub fn close_all(most: Duration) {
    let threads: Vec<_> = lock(&THREADS).iter().filter_map(Weak::upgrade).collect();
    close(&threads, most);
}
