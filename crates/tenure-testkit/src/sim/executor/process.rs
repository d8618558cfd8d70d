//! A simulated process, and its timers.

use super::*;

/// A simulated process: the [`Runtime`] of the code under test.
pub struct Process {
    pub(super) sim: Sim,
    pub(super) id: ProcessId,
    pub(super) clock: Clock,
    pub(super) random: AtomicU64,
}

impl Process {
    /// Its index.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Its clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

impl Runtime for Process {
    fn now(&self) -> Moment {
        let mut core = self.sim.core();
        core.looks += 1;
        // Destructors that run during this panic may read the clock again.
        let is_over = core.looks >= LOOKS && !thread::panicking();
        assert!(!is_over, "a poll looked at the clock {LOOKS} times, and will not end");
        Moment(self.clock.shows(core.now))
    }

    fn unix_micros(&self) -> u64 {
        EPOCH_US + self.clock.shows(self.sim.now()) / 1_000
    }

    fn random(&self) -> u64 {
        Rng::new(self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)).next()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(self.sim.sleep_until(self.clock.when(at.0)))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.sim.spawn(self.id, task);
    }

    fn run_here(&self, _is_hosted: bool, work: &mut dyn FnMut()) -> bool {
        work();
        true
    }

    fn has_host(&self) -> bool {
        true
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.id).field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// A sleep in true time.
#[derive(Debug)]
pub struct Sleep {
    pub(super) sim: Sim,
    pub(super) at: TrueTime,
    pub(super) waker: Option<Arc<Mutex<Option<Waker>>>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = self.sim.core();
        if core.now >= self.at {
            return Poll::Ready(());
        }
        match &self.waker {
            Some(waker) => {
                let mut waker = lock(waker);
                match &mut *waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
            }
            None => {
                let waker = Arc::new(Mutex::new(Some(cx.waker().clone())));
                core.push(self.at, What::Timer(Arc::clone(&waker)));
                drop(core);
                self.waker = Some(waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(waker) = &self.waker {
            lock(waker).take();
        }
    }
}
