//! Progress messages of a wait: who holds the lock, and whether the store answers.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::time::Duration;

use futures_util::future::join_all;
use tenure::{Holder, Owner, Status};
use tokio::time::sleep;

use crate::exit::{Failure, chain};
use crate::output::{Span, Voice, complain};
use crate::table::fitted;
use crate::wanted::Wanted;
use crate::{clock, kind, printer, status};

/// A lock held by others.
pub(crate) struct Awaited {
    pub(crate) status: Status,
    /// The queue position of this run, for kinds with a queue.
    place: Option<usize>,
}

impl Wanted<'_> {
    /// With -v, reports the holders of the awaited locks if the wait takes longer than a moment, and again
    /// every minute.
    pub(crate) async fn say_who_holds(&self) {
        let Self { locks, voice, .. } = *self;
        if !voice.verbose {
            return;
        }
        sleep(Duration::from_millis(100)).await;
        loop {
            for found in self.held_by_others().await {
                match found {
                    Ok(awaited) => {
                        let said = self.said(&awaited);
                        voice.detail(format_args!("waiting for {said}, in store {}", locks.url()));
                    }
                    Err(error) => voice.detail(format_args!("waiting: {}", chain(&error))),
                }
            }
            sleep(AGAIN).await;
        }
    }

    /// Shows the same on a live line of the terminal while the wait lasts.
    pub(crate) async fn show_who_holds(&self) {
        let start = clock::now();
        if self.voice.quiet || !printer::has_live_line() {
            return;
        }
        sleep(Duration::from_secs(1)).await;
        let line = printer::LiveLine;
        loop {
            let found: Vec<_> = self.held_by_others().await.into_iter().flatten().collect();
            let said: Vec<_> = found.iter().map(|awaited| self.said(awaited)).collect();
            if !said.is_empty() {
                let waited = Span(clock::now() - start);
                let text = format!("tenure: waiting {waited} for {}", said.join("; "));
                line.show(fitted(&text, printer::columns().saturating_sub(1)).trim_end());
            }
            sleep(LOOK).await;
        }
    }

    fn said(&self, Awaited { status, place }: &Awaited) -> String {
        let holders = status::holders(status);
        let place = place.map_or(String::new(), |place| format!("; place {place} in the queue"));
        if self.also.is_empty() {
            format!("{holders}{place}")
        } else {
            format!("lock {:?}: {holders}{place}", status.name)
        }
    }

    /// Reports when the store stops answering during a wait, and when it answers again.
    pub(crate) async fn say_of_silence(&self) {
        let Self { locks, voice, .. } = *self;
        // An inspection would open the files of all holders and waiters, in a directory.
        let Ok(asked) = locks.with(|options| options.op_timeout(LOOK)) else { return };
        say_of_silence(locks.url(), voice, async || asked.ping().await).await;
    }

    /// The requested locks that others hold in a way that keeps this run out.
    pub(crate) async fn held_by_others(&self) -> Vec<tenure::Result<Awaited>> {
        let found = join_all(self.names().map(|name| self.locks.inspect(name))).await;
        let held = found.into_iter().filter_map(Result::transpose);
        // A run that waits for one of several locks already holds those before it.
        let this = Owner::new("").ok();
        let is_ours = |owner: &Owner| {
            let made_here =
                this.as_ref().is_some_and(|this| (owner.host(), owner.pid()) == (this.host(), this.pid()));
            made_here || self.request.kind.owner.as_ref().is_some_and(|ours| *ours == owner.to_string())
        };
        let is_anothers = |holder: &Holder| !holder.owner.as_ref().is_some_and(is_ours);
        let awaited = |mut status: Status| {
            let place = status.waiters.iter().position(|waiter| !is_anothers(waiter));
            status.holders.retain(is_anothers);
            status.waiters.retain(is_anothers);
            Awaited { status, place: place.map(|before| before + 1) }
        };
        let held = held.map(|found| found.map(awaited));
        let is_in_the_way = |found: &tenure::Result<Awaited>| !matches!(found, Ok(awaited) if kind::has_room(&self.request.kind, &awaited.status));
        held.filter(is_in_the_way).collect()
    }
}

/// Reports when the store stops answering during a wait, once a minute while it does not, and when it answers
/// again.
pub(crate) async fn say_of_silence(store: &str, voice: Voice, ask: impl AsyncFn() -> tenure::Result<()>) {
    let (mut since, mut said_at) = (None, None);
    let mut pause = LOOK;
    loop {
        sleep(pause).await;
        let last = std::mem::replace(&mut pause, LOOK);
        let asked = clock::now();
        match (ask().await, since) {
            (Ok(()), None) => pause = (2 * last).min(LOOK_MAX),
            // The library has warned of it.
            (Err(error), _) if error.is_full() => {}
            (Ok(()), Some(start)) => {
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

/// Polls with growing pauses until nothing is found, and outlasts a store that does not answer. Returns what is
/// left at the limit.
pub(crate) async fn until_gone<T>(
    limit: Option<Duration>,
    longest: Duration,
    look: impl AsyncFn() -> tenure::Result<Result<Option<T>, Failure>>,
) -> Result<Option<T>, Failure> {
    let (mut pause, mut silence) = (Duration::from_millis(20), Silence::default());
    loop {
        let found = look().await;
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(clock::now()));
        match found {
            Ok(found) => match found? {
                Some(_) if !left.is_zero() => silence.ends(),
                gone_or_left => return Ok(gone_or_left),
            },
            Err(error) if left.is_zero() => return Err(error.into()),
            Err(error) => silence.outlasts(error, "still waiting")?,
        }
        sleep(pause.min(left)).await;
        pause = (pause * 3 / 2).min(longest);
    }
}

/// Whether a polling verb has reported an unresponsive store.
#[derive(Default)]
pub(crate) struct Silence {
    is_said: bool,
}

impl Silence {
    pub(crate) fn ends(&mut self) {
        self.is_said = false;
    }

    /// Reports once that the store did not answer and that the verb goes on; returns any other error.
    pub(crate) fn outlasts(&mut self, error: tenure::Error, going_on: &str) -> Result<(), Failure> {
        if !error.is_unreachable() && !error.is_unknown() {
            return Err(error.into());
        }
        if !std::mem::replace(&mut self.is_said, true) {
            complain(format_args!("{}; {going_on}", chain(&error)));
        }
        Ok(())
    }
}

/// How often a wait checks that its store answers: less and less often while it does.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
const LOOK_MAX: Duration = Duration::from_secs(20);
/// Interval of reports that it does not.
const AGAIN: Duration = Duration::from_secs(60);
