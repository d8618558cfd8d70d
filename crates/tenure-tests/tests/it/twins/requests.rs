//! What happens to the locks: requests, time, and changes by others.

use super::*;

impl Bench {
    /// Mostly the subject; for the queue, mostly the key's usual kind.
    pub(super) fn spec(&mut self, key: usize) -> LockSpec {
        let subject = match self.below(40) {
            0 => Subject::Mutex,
            1 => Subject::Reentrant,
            2 => Subject::Queue,
            _ => self.subject,
        };
        match subject {
            Subject::Mutex => LockSpec::Mutex,
            Subject::Reentrant => LockSpec::Reentrant,
            Subject::Queue => {
                let kind = if self.below(50) == 0 { self.below(7) } else { key as u64 };
                LockSpec::Queue(match kind {
                    0 | 1 => QueueSpec::FAIR,
                    2 | 3 if self.below(if self.is_long() { 60 } else { 4 }) == 0 => QueueSpec::WRITER,
                    2 | 3 if self.below(if self.is_long() { 60 } else { 4 }) == 0 => QueueSpec::UPGRADEABLE,
                    2 | 3 => QueueSpec::READER,
                    4 | 5 => QueueSpec::permits(5, 1 + self.below(3) as u32),
                    _ => QueueSpec::permits(3, 1 + self.below(5) as u32),
                })
            }
        }
    }

    pub(super) fn pass_time(&mut self) {
        let (hour, day) = (3_600_000_000, 86_400_000_000);
        match self.below(100) {
            _ if self.is_long() => {
                self.now_us += match self.below(250) {
                    0 => 20_000_000 + self.below(40_000_000),
                    _ => self.below(60_000),
                }
            }
            0..60 => self.now_us += self.below(700_000),
            60..90 => self.now_us += self.below(5_000_000),
            90..94 => {}
            94 => self.now_us += hour + self.below(hour),
            95 => self.now_us += 20 * day,
            _ => self.now_us -= self.below(20_000_000),
        }
        self.server.clock().freeze_us(self.now_us);
    }

    /// Changes by other programs, operators and evictions.
    pub(super) fn interfere(&mut self) {
        let key = self.below(KEYS.len() as u64) as usize;
        let (name, mine) = (KEYS[key], self.owners[0].clone());
        let ttl_ms = self.below(3_000) + 1;
        let expires_ms = Some(self.now().ms + ttl_ms);
        let text =
            |text: &str, expires_ms| Some(ExpiringValue { value: Data::Text(text.to_owned()), expires_ms });
        match self.below(self.calm()) {
            0 => self.plant(key, "another client", text("another client", expires_ms), Some(ttl_ms)),
            1 => self.plant(key, "for ever", text("for ever", None), None),
            2 => self.plant(key, mine.as_str(), text(mine.as_str(), expires_ms), Some(ttl_ms)),
            3 => self.plant(key, mine.as_str(), text(mine.as_str(), None), None),
            4 => {
                let longer = format!("{mine}0#5");
                self.plant(key, &longer, text(&longer, expires_ms), Some(ttl_ms));
            }
            5 => {
                let broken = format!("{mine}#5x");
                self.plant(key, &broken, text(&broken, expires_ms), Some(ttl_ms));
            }
            6 | 7 => {
                let fields: &[&str] = match self.below(4) {
                    0 | 1 if ttl_ms.is_multiple_of(3) => &["#fence", "1", mine.as_str(), "1"],
                    0 | 1 if ttl_ms % 3 == 1 => &["#fence", "1", mine.as_str(), "1", "!a", "1"],
                    0 => &["#fence", "1", "a", "1"],
                    1 => &["mode", "read", "550e8400-e29b-41d4-a716-446655440000:1", "1"],
                    2 => &["#odd", "1"],
                    _ => &["550e8400-e29b-41d4-a716-446655440000:1", "2"],
                };
                self.eye.command(&["DEL", name]).expect("a reply");
                self.eye.command(&[&["HSET", name], fields].concat()).expect("a reply");
                self.eye.command(&["PEXPIRE", name, &ttl_ms.to_string()]).expect("a reply");
                let hash = fields.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
                self.states[key].lock = Some(ExpiringValue { value: Data::Hash(hash.collect()), expires_ms });
            }
            11 | 12 => {
                let (value, command): (_, &[&str]) = match self.below(2) {
                    0 => ("(zset)", &["ZADD", name, "-5", "somebody", "1800000000000000", "another client"]),
                    _ => ("(list)", &["RPUSH", name, "somebody"]),
                };
                self.eye.command(&["DEL", name]).expect("a reply");
                self.eye.command(command).expect("a reply");
                self.eye.command(&["PEXPIRE", name, &ttl_ms.to_string()]).expect("a reply");
                self.states[key].lock = text(value, expires_ms);
            }
            8 | 9 => {
                self.eye.command(&["DEL", name]).expect("a reply");
                self.states[key].lock = None;
            }
            10 => {
                self.eye.command(&["DEL", "tenure:fence", &side("tenure:ballot:", name)]).expect("a reply");
                (self.states[key].ballot, self.counter) = (None, 0);
            }
            _ => {}
        }
    }

    /// A hold in a queue that another client acquires by plain commands.
    pub(super) fn acquire_plainly(&mut self) {
        let key = self.below(KEYS.len() as u64) as usize;
        let (LockSpec::Queue(queue_spec), Subject::Queue) = (self.spec(key), self.subject) else { return };
        if self.below(3) > 0 || queue_spec.weight > queue_spec.capacity {
            return;
        }
        let (now, ttl_ms) = (self.now(), 1 + self.below(4_000));
        let owner = self.below(self.owners.len() as u64) as usize;
        let owner = self.owners[owner].clone();
        let QueueSpec { kind, capacity, weight } = queue_spec;
        let value = format!("{owner}#1:{kind}:{capacity}+{weight}");
        let set = ["SET", KEYS[key], &value, "NX", "PX", &ttl_ms.to_string()];
        let is_set = self.eye.command(&set).expect("a reply") == "OK";
        self.eye.command(&["INCR", "tenure:fence"]).expect("a reply");
        self.counter += 1;
        let lock = &mut self.states[key].lock;
        lock.take_if(|lock| lock.is_over(now));
        assert_eq!(is_set, lock.is_none(), "{lock:?}");
        if is_set {
            let deadline_ms = now.ms + ttl_ms;
            let mut queue = Queue::new(kind, capacity);
            queue.insert(0, Ticket { owner, weight, deadline_ms, listens: None });
            *lock = Some(ExpiringValue { value: Data::Queue(queue), expires_ms: Some(deadline_ms) });
        }
    }

    /// The holder of a queue without anybody else.
    pub(super) fn only_holder(&self, key: usize) -> Option<(usize, LockSpec)> {
        let Some(ExpiringValue { value: Data::Queue(queue), .. }) = &self.states[key].lock else {
            return None;
        };
        let (number, ticket) = queue.tickets().next()?;
        let is_alone = queue.owners() == 1 && number <= queue.mark && ticket.deadline_ms >= self.now().ms;
        let owner = self.owners.iter().position(|owner| *owner == ticket.owner)?;
        let (kind, capacity, weight) = (queue.kind, queue.capacity, ticket.weight);
        is_alone.then_some((owner, LockSpec::Queue(QueueSpec { kind, capacity, weight })))
    }

    fn plant(&mut self, key: usize, value: &str, entry: Option<ExpiringValue<Data>>, ttl_ms: Option<u64>) {
        let mut command = vec!["SET".to_owned(), KEYS[key].to_owned(), value.to_owned()];
        command.extend(ttl_ms.into_iter().flat_map(|ttl_ms| ["PX".to_owned(), ttl_ms.to_string()]));
        self.eye.command(&command).expect("a reply");
        self.states[key].lock = entry;
    }

    fn is_long(&self) -> bool {
        self.owners.len() > 100
    }

    /// Whether a text in the state represents a type that the Rust machines do not have.
    pub(super) fn is_of_another_type(&self, key: usize) -> bool {
        let lock = self.states[key].lock.as_ref().map(|lock| &lock.value);
        matches!(lock, Some(Data::Text(value)) if value.starts_with('('))
    }

    /// How rarely others interfere: a queue grows only if it is left alone for a while.
    fn calm(&self) -> u64 {
        match self.subject {
            Subject::Queue if self.is_long() => 1_000,
            Subject::Queue => 60,
            _ => 20,
        }
    }

    pub(super) fn verb(&mut self, spec: LockSpec) -> Verb {
        let is_long = self.is_long();
        let ttl_ms = 1 + self.below(if is_long { 20_000 } else { 4_000 });
        let fence = match (spec, self.below(4)) {
            (LockSpec::Mutex, 0) => Fence::Ballot(match self.below(8) {
                0 => self.below(1_000),
                1 => self.now_us + 40_000_000_000_000,
                2 => self.now_us + self.below(31_000_000_000_000),
                _ => self.now_us - 12_000_000 + self.below(13_000_000),
            }),
            _ => Fence::Assign,
        };
        // Here, or at another server. Rarely, because skipped waiters do not fill a queue.
        let listens = match self.below(if is_long { 300 } else { 12 }) {
            0 => Listening::new(2),
            1 | 2 => self.here,
            _ => None,
        };
        let hold = match spec {
            LockSpec::Reentrant => 1 + self.below(3),
            _ => 1,
        };
        let is_queue = matches!(spec, LockSpec::Queue(_));
        match self.below(if is_queue { 16 } else { 10 }) {
            n @ 0..5 => {
                let wait_ms =
                    (is_queue && n > 0).then(|| 1 + self.below(if is_long { 30_000 } else { 3_000 }));
                Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens, bind: Liveness::Process }
            }
            5 | 6 => {
                let weight = (is_queue && self.below(3) == 0).then(|| {
                    match self.below(if is_long { 60 } else { 3 }) {
                        0 => QueueSpec::WRITER.weight,
                        _ => 1 + self.below(4) as u32,
                    }
                });
                let bind = match self.below(6) {
                    0 => Some(Liveness::Lease),
                    1 => Some(Liveness::Process),
                    _ => None,
                };
                Verb::Renew { ttl_ms, hold, bind, weight }
            }
            7 | 8 => {
                let whose = if ttl_ms.is_multiple_of(4) { ReleaseScope::Named } else { ReleaseScope::Own };
                Verb::Release { hold, fence, whose }
            }
            9 if self.below(if is_long { 60 } else { 4 }) == 0 => {
                let whose = if ttl_ms.is_multiple_of(3) { ReleaseScope::Foreign } else { ReleaseScope::Any };
                Verb::Release { hold: hold / 2, fence, whose }
            }
            9 => Verb::Inspect,
            10..12 if is_long => Verb::Acquire {
                ttl_ms,
                hold,
                fence,
                wait_ms: Some(20_000 + ttl_ms),
                listens: None,
                bind: Liveness::Process,
            },
            _ => {
                let count = 1 + self.below(if is_long { 100 } else { 6 });
                let owners = (0..count).map(|_| self.below(self.owners.len() as u64) as usize);
                let owners: Vec<_> = owners.collect();
                let owners = owners.into_iter().map(|owner| self.owners[owner].clone()).collect();
                // At this length a place is kept longer.
                let wait_ms = if listens.is_some() && !ttl_ms.is_multiple_of(4) { 5_000 } else { ttl_ms };
                Verb::Refresh { owners, wait_ms, listens }
            }
        }
    }
}
