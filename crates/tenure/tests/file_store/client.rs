//! One client of a directory.

use super::*;

pub(crate) struct Client {
    pub(crate) store: File,
    pub(crate) driver: Arc<Driver>,
    pub(crate) spec: LockSpec,
}

impl Client {
    pub(crate) fn new(dir: &Path) -> Self {
        Self::of(LockSpec::Mutex, dir)
    }

    /// A client that requests locks of this kind.
    pub(crate) fn of(spec: LockSpec, dir: &Path) -> Self {
        let driver = Driver::start().expect("a thread");
        let store = File::new(dir, "file:test", Arc::clone(&driver) as _);
        Self { store, driver, spec }
    }

    pub(crate) fn ask(
        &self,
        name: &str,
        owner: &Owner,
        verb: Verb,
        within: Duration,
    ) -> Result<Answer, Failure> {
        let op = Op {
            name: LockName::new(name).expect("a name"),
            spec: self.spec,
            owner: owner.clone(),
            request: 7,
            verb,
        };
        block_on(self.store.request(op, within))
    }

    pub(crate) fn try_acquire(
        &self,
        name: &str,
        owner: &Owner,
        bind: Liveness,
        ttl_ms: u64,
    ) -> Result<Answer, Failure> {
        let verb =
            Verb::Acquire { ttl_ms, hold: 1, fence: Fence::Assign, wait_ms: None, listens: None, bind };
        self.ask(name, owner, verb, 5 * SECOND)
    }

    /// Another hold of an owner that may have several.
    pub(crate) fn enter(&self, name: &str, owner: &Owner, hold: u64) -> Answer {
        let (fence, bind) = (Fence::Assign, Liveness::Process);
        let verb = Verb::Acquire { ttl_ms: LONG_MS, hold, fence, wait_ms: None, listens: None, bind };
        self.ask(name, owner, verb, 5 * SECOND).expect("an answer")
    }

    /// Takes a place in a queue that outlasts any test.
    pub(crate) fn join(&self, name: &str, owner: &Owner) -> Answer {
        let (fence, wait_ms, bind) = (Fence::Assign, Some(LONG_MS), Liveness::Process);
        self.ask(
            name,
            owner,
            Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence, wait_ms, listens: Listening::new(1), bind },
            5 * SECOND,
        )
        .expect("an answer")
    }

    pub(crate) fn acquire(&self, name: &str, owner: &Owner) -> Answer {
        self.try_acquire(name, owner, Liveness::Process, LONG_MS).expect("an answer")
    }

    pub(crate) fn renew(&self, name: &str, owner: &Owner, bind: Option<Liveness>, ttl_ms: u64) -> Answer {
        self.ask(name, owner, Verb::Renew { ttl_ms, hold: 1, bind, weight: None }, 5 * SECOND)
            .expect("an answer")
    }

    pub(crate) fn try_release(&self, name: &str, owner: &Owner) -> Result<Answer, Failure> {
        self.ask(name, owner, release(), 5 * SECOND)
    }

    pub(crate) fn release(&self, name: &str, owner: &Owner) -> Answer {
        self.try_release(name, owner).expect("an answer")
    }

    pub(crate) fn inspect(&self, name: &str) -> Result<Answer, Failure> {
        self.ask(name, &owner(), Verb::Inspect, 5 * SECOND)
    }

    pub(crate) fn listen(&self, name: &str) -> Listener {
        let name = LockName::new(name).expect("a name");
        let topic = Topic::new(&name, LockSpec::Mutex, Purpose::Watch);
        block_on(self.store.subscribe(topic, SECOND)).expect("a listener")
    }

    pub(crate) fn listen_to_ask(&self, name: &str) -> Listener {
        let name = LockName::new(name).expect("a name");
        let topic = Topic::new(&name, LockSpec::Mutex, Purpose::Ask);
        block_on(self.store.subscribe(topic, 5 * SECOND)).expect("a listener")
    }

    pub(crate) fn within<T>(&self, limit: Duration, what: impl Future<Output = T>) -> Option<T> {
        let late = self.driver.sleep_until(self.driver.now() + limit);
        match block_on(select(std::pin::pin!(what), late)) {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }

    /// The whole listing, over all pages.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let (mut names, mut from) = (Vec::new(), Cursor::default());
        loop {
            let page = block_on(self.store.list(prefix, from, 5 * SECOND))?;
            names.extend(page.locks.iter().map(|(name, _)| name.as_str().to_owned()));
            match page.next {
                Some(next) => from = next,
                None => return Ok(names),
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.driver.stop();
    }
}

pub(crate) fn release() -> Verb {
    Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own }
}

pub(crate) fn owner() -> Owner {
    Owner::new("test").expect("an owner")
}

pub(crate) fn ticket(answer: &Answer) -> u64 {
    match answer {
        Answer::Held { fence: ticket } | Answer::Waiting { ticket, .. } => *ticket,
        other => panic!("no place: {other:?}"),
    }
}

pub(crate) fn found(answer: Result<Answer, Failure>) -> Found {
    match answer {
        Ok(Answer::Found(found)) => found,
        other => panic!("no client has it: {other:?}"),
    }
}

pub(crate) fn is_held(answer: &Answer) -> bool {
    matches!(answer, Answer::Held { .. })
}

pub(crate) fn is_busy(answer: &Answer) -> bool {
    matches!(answer, Answer::Busy { .. })
}

pub(crate) fn dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < 10 * SECOND, "not within ten seconds: {what}");
        sleep(Duration::from_millis(2));
    }
    begin.elapsed()
}

pub(crate) fn files(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = entries
        .filter(|path| path.file_name().expect("a name").to_string_lossy().starts_with(prefix))
        .collect();
    files.sort();
    files
}

/// The file of the only lock.
pub(crate) fn record(dir: &Path) -> PathBuf {
    let files = files(dir, "lock-");
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// Checks the message of a refusal: one line, which names this file.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, Failure>, file: &Path) -> String {
    match result {
        Err(Failure::Refused(cause)) => {
            let text = cause.to_string();
            assert!(!text.contains('\n') && text.contains(&file.display().to_string()), "{text}");
            text
        }
        other => panic!("not refused: {other:?}"),
    }
}
