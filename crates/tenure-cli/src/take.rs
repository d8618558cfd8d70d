//! Takes the locks that a command line asks for, and says what the wait is about.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure::{Holder, LockName, Multi, MultiGuard, Options, Owner, Status};
use tokio::time::{sleep, timeout};

use crate::cli::Request;
use crate::exit::{Failure, of_signal};
use crate::output::{Span, chain};
use crate::signals::Signals;
use crate::store::Terms;
use crate::wanted::Wanted;
use crate::{ancestors, clock, kind, status};

/// The options of a request. `label` is what the owner is called by, for people.
pub(crate) fn options(request: &Request, options: Options) -> Options {
    options.ttl(request.ttl).label(label(&request.name)).unfenced(request.unfenced)
}

/// What its flags say of the store.
pub(crate) fn terms(request: &Request) -> Terms {
    Terms { acks: request.acks.replicas, restart_grace: request.restart_grace }
}

/// The name, as far as the label of an owner can say it.
pub(crate) fn label(name: &str) -> String {
    let fits = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-');
    let fitting = name.chars().map(|char| if fits(char) { char } else { '-' });
    // One that begins with a hyphen would look like an option where an owner is an argument.
    fitting.skip_while(|char| *char == '-').take(64).collect()
}

impl Wanted<'_> {
    /// Takes them, or says why not: then it returns the code to exit with.
    pub(crate) async fn take(&self, signals: &mut Signals) -> Result<Result<MultiGuard, u8>, Failure> {
        let multi = kind::all(self)?;
        // What was granted to a wait that ended otherwise is given back when the last handle is
        // dropped, at the end of this.
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

    /// Waits for them as long as was asked for.
    async fn granted(&self, multi: &Multi) -> Result<Option<MultiGuard>, Failure> {
        let Self { request, locks, voice, .. } = *self;
        let start = clock::now();
        let aside = async {
            if request.wait.is_some() {
                // What is busy by then is not granted at once.
                sleep(Duration::from_millis(50)).await;
                self.waits_for_itself().await;
            }
            join(self.say_who_holds(), self.say_of_silence()).await;
        };
        let guards = beside(aside, async {
            match request.wait {
                _ if request.no_wait => multi.try_lock().await,
                Some(limit) if limit.is_zero() => multi.try_lock().await,
                Some(limit) => multi.try_lock_for(limit).await,
                // Asked once first: a store that is not there at all is told at once, however long
                // the lock may take.
                None => match multi.try_lock().await? {
                    None if self.waits_for_itself().await => Ok(None),
                    None => multi.lock().await.map(Some),
                    granted => Ok(granted),
                },
            }
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

    /// Says so, where a run above this one holds what this one waits for.
    async fn waits_for_itself(&self) -> bool {
        let Self { request, voice, .. } = *self;
        let held = ancestors::hold(self).await;
        for status in &held {
            let (name, holders) = (&status.name, status::holders(status));
            let advice = if request.wait.is_some() { "" } else { "; with -w DURATION it waits all the same" };
            voice.say(format_args!(
                "lock {name} is held by a run that started this one, which would wait for itself: {holders}{advice}"
            ));
        }
        !held.is_empty()
    }

    /// What a wait says that takes longer than a moment.
    async fn say_who_holds(&self) {
        let Self { locks, voice, .. } = *self;
        if !voice.verbose {
            return;
        }
        sleep(Duration::from_millis(100)).await;
        for found in self.held_by_others().await {
            match found {
                Ok(status) if self.also.is_empty() => {
                    let holders = status::holders(&status);
                    voice.detail(format_args!("waiting for {holders}, in store {}", locks.url()));
                }
                Ok(status) => {
                    let (name, holders) = (&status.name, status::holders(&status));
                    voice.detail(format_args!(
                        "waiting for lock {name:?}: {holders}, in store {}",
                        locks.url()
                    ));
                }
                Err(error) => voice.detail(format_args!("waiting: {}", chain(&error))),
            }
        }
    }

    /// Says when the store stops answering during a wait, once a minute while it does not, and when
    /// it is back.
    async fn say_of_silence(&self) {
        let Self { request, locks, voice, .. } = *self;
        let store = locks.url();
        let (mut since, mut said_at) = (None, None);
        loop {
            sleep(LOOK).await;
            let asked = clock::now();
            match (locks.inspect(&request.name).await, since) {
                (Ok(_), None) => {}
                (Ok(_), Some(start)) => {
                    let silence = Span(clock::now() - start);
                    voice.say(format_args!("store {store} answers again, after {silence}; still waiting"));
                    (since, said_at) = (None, None);
                }
                (Err(error), _) => {
                    since.get_or_insert(asked);
                    if said_at.is_none_or(|said_at| asked >= said_at + AGAIN) {
                        said_at = Some(asked);
                        voice.say(format_args!("{}; still waiting", chain(&error)));
                    }
                }
            }
        }
    }

    /// Which of the locks is busy, as far as that can be learnt in a moment.
    async fn busy(&self) -> Result<String, Failure> {
        let name = LockName::new(&self.request.name)?;
        if self.also.is_empty() {
            return Ok(format!("lock {name:?} is busy"));
        }
        let mut names = Vec::new();
        if !self.voice.quiet
            && let Ok(found) = timeout(Duration::from_millis(500), self.held_by_others()).await
        {
            names.extend(found.into_iter().flatten().map(|status| format!("lock {:?}", status.name)));
        }
        Ok(match &names[..] {
            // It is free by now, or the store does not say.
            [] => format!("lock {name:?}, or one of the others, is busy"),
            [one] => format!("{one} is busy"),
            several => format!("{} are busy", several.join(" and ")),
        })
    }

    /// Those of the wanted locks that others hold, so that this run cannot.
    async fn held_by_others(&self) -> Vec<tenure::Result<Status>> {
        let found = join_all(self.names().map(|name| self.locks.inspect(name))).await;
        let mut held: Vec<_> = found.into_iter().filter_map(Result::transpose).collect();
        // A run that waits for one of several locks holds those before it.
        let this = Owner::new("").ok();
        let is_ours = |owner: &Owner| {
            let made_here =
                this.as_ref().is_some_and(|this| (owner.host(), owner.pid()) == (this.host(), this.pid()));
            made_here || self.request.kind.owner.as_ref().is_some_and(|ours| *ours == owner.to_string())
        };
        let is_anothers = |holder: &Holder| !holder.owner.as_ref().is_some_and(is_ours);
        for status in held.iter_mut().flatten() {
            status.holders.retain(is_anothers);
            status.waiters.retain(is_anothers);
        }
        held.retain(|found| !matches!(found, Ok(status) if kind::has_room(&self.request.kind, status)));
        held
    }
}

/// How often a wait looks whether its store answers.
const LOOK: Duration = Duration::from_secs(2);
/// How often it says that the store does not.
const AGAIN: Duration = Duration::from_secs(60);

/// Does the work, and polls `aside` meanwhile without waiting for it.
async fn beside<T>(aside: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    let (mut aside, mut work) = (pin!(aside), pin!(work));
    let mut is_done = false;
    poll_fn(|context| {
        let result = work.as_mut().poll(context);
        is_done = is_done || result.is_ready() || aside.as_mut().poll(context).is_ready();
        result
    })
    .await
}
