//! Acquires the locks that a command line asks for.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join3;
use tenure::{LockName, Multi, MultiGuard, Options};
use tokio::time::{sleep, timeout};

use crate::cli::Request;
use crate::exit::{Failure, advice, of_signal};
use crate::output::Span;
use crate::signals::Signals;
use crate::store::Guarantees;
use crate::waiting::Awaited;
use crate::wanted::Wanted;
use crate::{ancestors, clock, kind, status, store};

pub(crate) fn options(request: &Request, options: Options) -> Options {
    options.ttl(request.ttl).label(&request.label).unfenced(request.unfenced)
}

/// The guarantees of the store given by flags.
pub(crate) fn guarantees(request: &Request) -> Guarantees {
    Guarantees { acks: request.acks.replicas, restart_grace: request.restart_grace }
}

impl Wanted<'_> {
    /// Acquires the locks; otherwise reports why not and returns the exit code.
    pub(crate) async fn take(&self, signals: &mut Signals) -> Result<Result<MultiGuard, u8>, Failure> {
        let multi = kind::all(self)?;
        // A grant to a wait that ended otherwise is released when the last handle is dropped, at the end of
        // this function.
        match signals.or_end(self.granted(&multi)).await {
            Ok(Ok(Some(guards))) => Ok(Ok(guards)),
            Ok(Ok(None)) => match signals.or_end(self.busy()).await {
                Ok(which) => {
                    self.voice.say(which?);
                    Ok(Err(self.request.busy_code))
                }
                Err(signal) => Ok(Err(of_signal(signal))),
            },
            Ok(Err(failure)) => Err(failure),
            Err(signal) => Ok(Err(of_signal(signal))),
        }
    }

    /// Waits for the locks as long as requested.
    async fn granted(&self, multi: &Multi) -> Result<Option<MultiGuard>, Failure> {
        let Self { request, locks, voice, is_rerun, .. } = *self;
        let start = clock::now();
        let aside = async {
            if request.wait.is_some() {
                // By then, a free lock would have been granted.
                sleep(Duration::from_millis(50)).await;
                self.waits_for_itself().await;
            }
            let silence = async {
                // Without a limit, the first request reports it.
                if request.wait.is_none() && !is_rerun {
                    sleep(store::PATIENCE).await;
                }
                self.say_of_silence().await;
            };
            join3(self.say_who_holds(), self.show_who_holds(), silence).await;
        };
        let once = store::unless_absent(locks, multi.try_lock());
        let guards = beside(aside, async {
            Ok::<_, Failure>(match request.wait {
                _ if request.no_wait => once.await??,
                Some(limit) if limit.is_zero() => once.await??,
                Some(limit) => multi.try_lock_for(limit).await?,
                None if is_rerun => Some(multi.lock().await?),
                // Try once first, so that an unreachable store is reported at once, however long the lock may
                // take.
                None => match once.await? {
                    Ok(Some(guards)) => Some(guards),
                    // A full server is waited for like a busy lock.
                    Err(error) if !error.is_full() => return Err(with_hint(error)),
                    _ if self.waits_for_itself().await => None,
                    _ => Some(multi.lock().await.map_err(with_hint)?),
                },
            })
        });
        let guards = guards.await?;
        let waited = Span(clock::now() - start);
        for guard in guards.iter().flat_map(|guards| guards.iter()) {
            let (name, token, store) = (guard.name(), guard.fence(), locks.url());
            voice.detail(format_args!(
                "lock {name:?} acquired after {waited}, token {token}, in store {store}"
            ));
        }
        Ok(guards)
    }

    /// Reports if a run above this one holds an awaited lock.
    async fn waits_for_itself(&self) -> bool {
        let Self { request, voice, .. } = *self;
        let held = ancestors::hold(self).await;
        for status in &held {
            let (name, holders) = (&status.name, status::holders(status));
            let advice = if request.wait.is_some() { "" } else { "; use -w DURATION to wait anyway" };
            voice.say(format_args!(
                "lock {name:?} is held by a run that started this one, which would wait for itself: {holders}{advice}"
            ));
        }
        !held.is_empty()
    }

    /// Which of the locks is busy and who holds it, as far as the store answers quickly.
    async fn busy(&self) -> Result<String, Failure> {
        let name = LockName::new(&self.request.name)?;
        let mut busy = Vec::new();
        if !self.voice.quiet
            && let Ok(found) = timeout(Duration::from_millis(500), self.held_by_others()).await
        {
            let said = |Awaited { status, .. }: Awaited| {
                format!("lock {:?} is busy: {}", status.name, status::holders(&status))
            };
            busy.extend(found.into_iter().flatten().map(said));
        }
        Ok(match &busy[..] {
            // It is free by now, or the store did not answer in time.
            [] if self.also.is_empty() => format!("lock {name:?} is busy"),
            [] => format!("lock {name:?}, or one of the others, is busy"),
            several => several.join("; and "),
        })
    }
}

/// A hint for a request without -w: an unreachable store is not waited for.
fn with_hint(error: tenure::Error) -> Failure {
    let is_unreachable = error.is_unreachable();
    let mut failure = Failure::from(error);
    if is_unreachable && advice(&failure.message).is_none() {
        failure.message.push_str("; use -w DURATION to retry for that long");
    }
    failure
}

/// Runs `work`, polling `aside` meanwhile without waiting for it.
pub(crate) async fn beside<T>(aside: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    let (mut aside, mut work) = (pin!(aside), pin!(work));
    let mut is_done = false;
    poll_fn(|context| {
        let result = work.as_mut().poll(context);
        is_done = is_done || result.is_ready() || aside.as_mut().poll(context).is_ready();
        result
    })
    .await
}
