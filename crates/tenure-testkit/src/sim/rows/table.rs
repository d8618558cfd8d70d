//! The table of the locks, and the effect of each statement of `tenure-postgres/src/statements.rs` on it.

use std::collections::{BTreeMap, BTreeSet};

use tenure::internals::protocol::codec::{self, VERSION};
use tenure::internals::protocol::{
    self, Answer, Data, ExpiringValue, Fence, Liveness, LockSpec, Notification, Now, Op, ReleaseScope, State,
    Verb,
};
use tenure::internals::store::observe::Told;
use tenure::internals::store::rows::{
    EndedSessions, ExpectedSession, LockKey, RecordColumns, Row as Read, RowChange, SessionCheck, SoleChange,
    SoleVerb, WriteOutcome,
};
use tenure::{LockName, Owner};

/// A mistake in a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    #[default]
    Nothing,
    /// A write does not compare the serial number.
    SerialUncompared,
    /// A write is executed however late it is.
    LateWriteTaken,
    /// A renewal does not compare the owner.
    OwnerUncompared,
    /// A write that ends a hold ignores check-ins.
    CheckInUnseen,
    /// A release ignores that its hold is checked in.
    CheckInReleased,
    /// A row gets the clock as its token, even if its last token is higher.
    TokenOfClock,
    /// The deletion of a row loses its token.
    TokenSwept,
    /// No notification is sent.
    NothingSaid,
    /// Every session counts as ended.
    SessionsEnded,
    /// A write of a row that another transaction has locked is reported as written.
    LockedReported,
}

/// The database of a simulated server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Database {
    /// Sends notifications. A batch of changes is one transaction.
    #[default]
    Postgres,
    /// Sends no notifications. Each change is a transaction of its own, and none applies to a row with a hold
    /// that is checked in.
    Mysql,
}

const HOUR_US: i64 = 3_600_000_000;

#[derive(Clone, Debug, Default)]
struct Row {
    whole: Option<String>,
    kind: Option<String>,
    value: Option<String>,
    ends: i64,
    fence: i64,
    serial: i64,
    awaited: i64,
    record: Option<RecordColumns>,
    /// The holds that open transactions have checked in: `FOR KEY SHARE`.
    checked_in: Vec<(String, i64)>,
}

/// All rows but the one without a name, of which it has the token.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<String, Row>,
    lowest: i64,
    mistake: Mistake,
    pub(super) database: Database,
    /// The sessions that have not ended.
    pub(super) sessions: BTreeSet<String>,
    /// Messages of the current statement.
    pub(super) said: Vec<String>,
    /// Requests that the current statement carries out.
    pub(super) told: Vec<Told>,
    /// Whether the current statement reaches the disk at once, if it changes anything.
    pub(super) durable: Option<bool>,
}

/// What an acquire knows before it waits for the row.
#[derive(Clone, Copy)]
pub(super) struct Drawn {
    us: i64,
    token: i64,
}

impl Row {
    fn state(&self) -> State {
        let data = || codec::decode(self.kind.as_ref()?.parse().ok()?, self.value.as_ref()?);
        let lock = data().map(|value| ExpiringValue { value, expires_ms: Some(self.ends as u64) });
        State { lock, ballot: None }
    }

    /// When a hold that is written here ends.
    fn end_of(&self, owner: &str, fence: i64) -> Option<i64> {
        let end = match self.state().lock?.value {
            Data::Text(value) => (value == format!("{owner}#{fence}")).then_some(self.ends),
            Data::Hash(hash) => {
                let is_it = hash.contains_key(owner) && hash.get("#fence") == Some(&fence.to_string());
                is_it.then_some(self.ends)
            }
            Data::Queue(queue) => {
                let mut holds = queue.tickets().take_while(|(number, _)| *number <= queue.mark);
                let hold =
                    holds.find(|(number, ticket)| *number == fence as u64 && ticket.owner.as_str() == owner);
                hold.map(|(_, ticket)| ticket.deadline_ms as i64)
            }
        };
        end.map(|end| end.min(self.ends))
    }
}

impl Table {
    pub(super) fn new(mistake: Mistake, database: Database) -> Self {
        Self { mistake, database, ..Self::default() }
    }

    /// A request that one statement carries out.
    fn tell(&mut self, SoleChange { key, spec, .. }: &SoleChange, owner: &Owner, verb: Verb, answer: Answer) {
        // The key of a long name is another.
        let Ok(name) = LockName::new(&key.name) else { return };
        let after = self.state(&name);
        let op = Op { name, spec: *spec, owner: owner.clone(), request: 0, verb };
        self.told.push(Told { op, answer, passed: Vec::new(), wake: None, after });
    }

    /// The lock of this name.
    pub(super) fn state(&self, name: &LockName) -> State {
        self.rows.get(name.as_str()).map_or_else(State::default, Row::state)
    }

    pub(super) fn draw(&self, us: i64) -> Drawn {
        Drawn { us, token: us.max(self.lowest + 1) }
    }

    /// Changes locks that have no holder or a single one.
    pub(super) fn change(
        &mut self,
        changes: &[SoleChange],
        (drawn, us): (&Drawn, i64),
        is_locked: &dyn Fn() -> bool,
    ) -> BTreeMap<String, i64> {
        let is_release = changes.iter().all(|change| change.verb == SoleVerb::Release);
        self.durable = Some(!is_release || self.database == Database::Mysql);
        let mut done = BTreeMap::new();
        for change in changes {
            if is_locked() {
                let row = self.rows.get(&change.key.name).filter(|_| self.mistake == Mistake::LockedReported);
                done.extend(row.map(|row| (change.key.name.clone(), row.fence)));
                continue;
            }
            let is_done = match change.verb {
                SoleVerb::Acquire => self.acquire(change, drawn, us),
                SoleVerb::Release => self.release(change, &change.owner, us),
                SoleVerb::Renew => self.renew(change, us),
            };
            if is_done {
                done.insert(change.key.name.clone(), self.rows[&change.key.name].fence);
            }
        }
        self.durable = self.durable.filter(|_| !done.is_empty());
        done
    }

    fn acquire(&mut self, change: &SoleChange, drawn: &Drawn, us: i64) -> bool {
        let SoleChange { key, spec, owner, hold, ttl_ms, before, .. } = change;
        let Drawn { us, token } = Drawn { us: drawn.us.min(us), ..*drawn };
        if let Some(before) = before
            && !self.release(change, before, us)
        {
            return false;
        }
        let of_clock = self.mistake == Mistake::TokenOfClock;
        let row = match self.rows.get_mut(&key.name) {
            Some(row) if row.value.is_some() => return false,
            Some(row) => {
                row.fence = if of_clock { us } else { token.max(row.fence + 1) };
                row.serial += 1;
                row
            }
            None => {
                let row = Row { whole: key.whole.clone(), fence: token, serial: us, ..Row::default() };
                self.rows.entry(key.name.clone()).or_insert(row)
            }
        };
        row.kind = Some(spec.kind().to_string());
        row.ends = us / 1_000 + ttl_ms;
        row.value = Some(filled(&change.value(), row.fence, row.ends));
        let (ttl_ms, hold, token) = (*ttl_ms as u64, *hold, row.fence as u64);
        let (fence, bind) = (Fence::Assign, Liveness::Lease);
        let verb = Verb::Acquire { ttl_ms, hold, fence, wait_ms: None, listens: None, bind };
        self.tell(change, owner, verb, Answer::Held { fence: token });
        true
    }

    /// Whether a lock is held by this owner alone.
    fn is_sole(&self, SoleChange { key, spec, hold, .. }: &SoleChange, owner: &Owner, us: i64) -> bool {
        self.rows.get(&key.name).is_some_and(|row| {
            row.kind.as_deref() == Some(spec.kind().as_str())
                && row.value.as_deref()
                    == Some(&*filled(&codec::sole(*spec, owner, *hold), row.fence, row.ends))
                && row.ends >= us / 1_000
        })
    }

    fn release(&mut self, change: &SoleChange, owner: &Owner, us: i64) -> bool {
        let (spares, is_sole) = (self.mistake != Mistake::CheckInReleased, self.is_sole(change, owner, us));
        let Some(row) = self.rows.get_mut(&change.key.name).filter(|_| is_sole) else { return false };
        if spares && !row.checked_in.is_empty() {
            return false;
        }
        (row.kind, row.value, row.ends) = (None, None, 0);
        row.serial += 1;
        if row.awaited >= us / 1_000 && !change.message.is_empty() && self.mistake != Mistake::NothingSaid {
            self.said.push(change.message.clone());
        }
        let verb = Verb::Release { hold: change.hold, fence: Fence::Assign, whose: ReleaseScope::Own };
        self.tell(change, owner, verb, Answer::Released { left: 0 });
        true
    }

    fn renew(&mut self, change: &SoleChange, us: i64) -> bool {
        let (mistake, mysql) = (self.mistake, self.database == Database::Mysql);
        let is_sole = self.is_sole(change, &change.owner, us);
        let Some(row) = self.rows.get_mut(&change.key.name) else { return false };
        let is_uncompared = mistake == Mistake::OwnerUncompared
            && row.kind.as_deref() == Some("mutex")
            && row.ends >= us / 1_000;
        let is_spared = mysql && !row.checked_in.is_empty();
        if !(is_sole || is_uncompared) || is_spared {
            return false;
        }
        row.ends = row.ends.max(us / 1_000 + change.ttl_ms);
        row.serial += 1;
        if is_sole {
            row.value = Some(filled(&change.value(), row.fence, row.ends));
        }
        let (ttl_ms, fence) = (change.ttl_ms as u64, row.fence as u64);
        let verb = Verb::Renew { ttl_ms, hold: change.hold, bind: None, weight: None };
        self.tell(change, &change.owner, verb, Answer::Held { fence });
        true
    }

    pub(super) fn read(&self, names: &[String], with_records: bool, us: i64) -> Vec<Read> {
        let told = |name: &String| {
            let row = self.rows.get(name);
            Read {
                name: name.clone(),
                whole: None,
                version: row.map(|_| VERSION.to_owned()),
                kind: row.and_then(|row| row.kind.clone()),
                value: row.and_then(|row| row.value.clone()),
                ends_ms: row.map(|row| row.ends),
                fence: row.map_or(self.lowest, |row| row.fence),
                serial: row.map(|row| row.serial),
                clock_us: us,
                record: row.and_then(|row| row.record.clone()).filter(|_| with_records),
            }
        };
        names.iter().map(told).collect()
    }

    /// Whether a change comes in time.
    fn is_in_time(&self, change: &RowChange, us: i64) -> bool {
        change.until_ms as i64 >= us / 1_000 || self.mistake == Mistake::LateWriteTaken
    }

    pub(super) fn write(
        &mut self,
        changes: &[(LockKey, RowChange)],
        us: i64,
        is_locked: &dyn Fn() -> bool,
    ) -> WriteOutcome {
        let durable = changes.iter().any(|(_, change)| change.durable);
        self.durable = Some(durable || self.database == Database::Mysql);
        let WriteOutcome { mut written, mut refused, failed } = WriteOutcome::default();
        for (key, change) in changes {
            if let Some(ended) = self.refuses(change, us) {
                refused.insert(key.name.clone(), ended);
                continue;
            }
            if !self.is_in_time(change, us) {
                continue;
            }
            let is_spared = |row: &Row| {
                (change.ends_hold || self.database == Database::Mysql)
                    && !row.checked_in.is_empty()
                    && self.mistake != Mistake::CheckInUnseen
            };
            let awaited = match (self.rows.get_mut(&key.name), change.serial) {
                (Some(row), Some(serial)) => {
                    let is_same = row.serial == serial || self.mistake == Mistake::SerialUncompared;
                    if !is_same || is_spared(row) || is_locked() {
                        if is_same && self.mistake == Mistake::LockedReported {
                            written.insert(key.name.clone());
                        }
                        continue;
                    }
                    row.serial += 1;
                    replace(row, change);
                    row.awaited
                }
                (None, None) => {
                    let mut row = Row { whole: key.whole.clone(), serial: us, ..Row::default() };
                    replace(&mut row, change);
                    self.rows.insert(key.name.clone(), row);
                    0
                }
                _ => continue,
            };
            let heard = change.wake.lines().filter(|line| line.starts_with('!') || awaited >= us / 1_000);
            if self.mistake != Mistake::NothingSaid {
                self.said.extend(heard.map(str::to_owned));
            }
            self.told.extend_from_slice(change.notes.told());
            written.insert(key.name.clone());
        }
        self.durable = self.durable.filter(|_| !written.is_empty());
        WriteOutcome { written, refused, failed }
    }

    /// The sessions found ended, if the change expects otherwise.
    fn refuses(&self, change: &RowChange, us: i64) -> Option<EndedSessions> {
        if self.database == Database::Mysql {
            return None;
        }
        let (mut ended, mut is_refused) = (EndedSessions::new(), false);
        for SessionCheck { client, expects } in &change.sessions {
            let session = self.session(client);
            let has_ended = session.filter(|(session, until)| match expects {
                ExpectedSession::Ended(known) if known == session => true,
                _ if *until < us / 1_000 => false,
                _ => !self.sessions.contains(*session) || self.mistake == Mistake::SessionsEnded,
            });
            is_refused |= match expects {
                ExpectedSession::Lives => has_ended.is_some(),
                ExpectedSession::Ended(_) => has_ended.is_none(),
                ExpectedSession::Any => false,
            };
            ended.extend(has_ended.map(|(session, _)| (client.clone(), session.to_owned())));
        }
        is_refused.then_some(ended)
    }

    /// The session that a client's row names, and until when.
    pub(super) fn session(&self, client: &str) -> Option<(&str, i64)> {
        let row = self.rows.get(client)?;
        Some((row.whole.as_deref()?, row.awaited))
    }

    pub(super) fn forget_sessions(&mut self, keys: &[LockKey]) {
        self.durable = Some(true);
        for LockKey { name, whole } in keys {
            if self.rows.get(name).is_some_and(|row| row.whole == *whole) {
                self.rows.remove(name);
            }
        }
    }

    pub(super) fn note_listeners(&mut self, keys: &[LockKey], us: i64) {
        let ms = us / 1_000;
        self.durable = Some(true);
        for key in keys {
            match self.rows.get_mut(&key.name) {
                Some(row) if row.awaited > ms + 240_000 && row.whole == key.whole => {}
                Some(row) => {
                    row.whole = key.whole.clone();
                    row.awaited = ms + 300_000;
                    row.serial += 1;
                }
                None => {
                    let (whole, fence) = (key.whole.clone(), self.lowest);
                    let row = Row { whole, fence, serial: us, awaited: ms + 300_000, ..Row::default() };
                    self.rows.insert(key.name.clone(), row);
                }
            }
        }
    }

    pub(super) fn list(&self, prefix: &str, after: &str, us: i64) -> Vec<Read> {
        let names = self
            .rows
            .iter()
            .filter(|(name, row)| name.starts_with(prefix) && name.as_str() > after && row.value.is_some());
        let names: Vec<String> = names.map(|(name, _)| name.clone()).take(500).collect();
        let whole =
            |told: Read| Read { whole: self.rows[&told.name].whole.clone(), fence: 0, serial: None, ..told };
        self.read(&names, false, us).into_iter().map(whole).collect()
    }

    pub(super) fn records(&self, prefix: &str, after: &str, us: i64) -> Vec<Read> {
        let is_kept = |row: &Row| {
            let ends = row.record.as_ref().map(|record| record.ends_ms);
            ends.is_some_and(|ends| ends.is_some_and(|ends| ends >= us / 1_000))
        };
        let names = self
            .rows
            .iter()
            .filter(|(name, row)| name.starts_with(prefix) && name.as_str() > after && is_kept(row));
        let names: Vec<String> = names.map(|(name, _)| name.clone()).take(250).collect();
        let whole = |told: Read| Read { whole: self.rows[&told.name].whole.clone(), ..told };
        self.read(&names, true, us).into_iter().map(whole).collect()
    }

    pub(super) fn sweep(
        &mut self,
        after: &str,
        page: usize,
        us: i64,
        is_locked: &dyn Fn() -> bool,
    ) -> Option<String> {
        let part: Vec<String> =
            self.rows.keys().filter(|name| name.as_str() > after).take(page).cloned().collect();
        for name in &part {
            let row = &self.rows[name];
            let is_old = row.fence < us - HOUR_US && row.ends.max(row.awaited) < (us - HOUR_US) / 1_000;
            let record = row.record.as_ref();
            let is_recorded =
                record.is_some_and(|record| record.ends_ms.is_none_or(|ends| ends >= us / 1_000));
            if is_old && !is_recorded && row.checked_in.is_empty() && !is_locked() {
                if self.mistake != Mistake::TokenSwept {
                    self.lowest = self.lowest.max(row.fence);
                }
                self.rows.remove(name);
                self.durable = Some(true);
            }
        }
        part.last().cloned()
    }

    /// Checks a hold in, if it is held.
    pub(super) fn check_in(&mut self, name: &str, owner: &str, fence: i64, us: i64) -> bool {
        let Some(row) = self.rows.get_mut(name) else { return false };
        let is_held = row.end_of(owner, fence).is_some_and(|end| end >= us / 1_000);
        if is_held {
            row.checked_in.push((owner.to_owned(), fence));
        }
        is_held
    }

    /// Ends a transaction that has checked a hold in.
    pub(super) fn check_out(&mut self, name: &str, owner: &str, fence: i64) {
        let Some(row) = self.rows.get_mut(name) else { return };
        let at = row.checked_in.iter().position(|(by, token)| by == owner && *token == fence);
        at.map(|at| row.checked_in.swap_remove(at));
    }

    /// Aborts open transactions.
    pub(super) fn break_off(&mut self) {
        self.rows.values_mut().for_each(|row| row.checked_in.clear());
    }

    /// Deletes a row, as an operator would. That clients listen stays noted: else the next release would be
    /// noticed only when they ask again by themselves.
    pub(super) fn delete(&mut self, name: &LockName, us: i64) -> bool {
        let Some(row) = self.rows.get_mut(name.as_str()) else { return false };
        let fresh = Row { fence: self.lowest, serial: us, awaited: row.awaited, ..Row::default() };
        std::mem::replace(row, fresh).value.is_some()
    }

    /// Makes sure that a row is written by no statement that read it, or did not find it, before.
    pub(super) fn touch(&mut self, name: &LockName, us: i64) {
        let fresh = || Row { fence: self.lowest, serial: us, ..Row::default() };
        self.rows.entry(name.as_str().to_owned()).or_insert_with(fresh).serial += 1;
    }

    /// Removes expired holds, as the next request of any client would.
    pub(super) fn settle(&mut self, us: i64) {
        for (name, row) in &mut self.rows {
            let mut state = row.state();
            let Some(spec) = state.lock.as_ref().map(|lock| match &lock.value {
                Data::Text(_) => LockSpec::Mutex,
                Data::Hash(_) => LockSpec::Reentrant,
                Data::Queue(queue) => LockSpec::of(queue.kind, Some(queue.capacity)),
            }) else {
                continue;
            };
            let owner: Owner = format!("sweeper@sim:1/{:032x}", 0).parse().expect("an owner");
            let verb = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
            let op = Op { name: LockName::new(name).expect("a name"), spec, owner, request: 0, verb };
            let (now, mut counter) = (Now { ms: us as u64 / 1_000, unix_us: us as u64 }, row.fence as u64);
            let (answer, wake) = protocol::apply(&mut state, &mut counter, now, &op);
            if let (Some(Data::Queue(queue)), Some(Notification::Granted { tickets }), Database::Postgres) =
                (state.lock.as_mut().map(|lock| &mut lock.value), &wake, self.database)
            {
                tickets.iter().for_each(|ticket| queue.shorten(*ticket, now.ms + 5_000));
            }
            self.told.push(Told { op, answer, passed: Vec::new(), wake, after: state.clone() });
            row.value = state.lock.as_ref().map(|lock| codec::encode(&lock.value));
            row.kind = row.kind.take().filter(|_| row.value.is_some());
            row.ends = state.lock.and_then(|lock| lock.expires_ms).unwrap_or(0) as i64;
        }
    }

    /// When the next lease ends, after this moment.
    pub(super) fn next_end(&self, us: i64) -> Option<i64> {
        let ends = self.rows.values().filter_map(|row| row.state().lock).flat_map(|lock| match lock.value {
            Data::Queue(queue) => queue.tickets().map(|(_, ticket)| ticket.deadline_ms).collect(),
            _ => Vec::from_iter(lock.expires_ms),
        });
        ends.map(|ms| (ms as i64 + 1) * 1_000).filter(|end| *end > us).min()
    }

    /// The locks that are not free: with a hold or a place that has not expired.
    pub(super) fn left(&self, us: i64) -> Vec<String> {
        let now = Now { ms: us as u64 / 1_000, unix_us: us as u64 };
        let alive = self.rows.iter().filter(|(_, row)| protocol::found(&row.state(), now).is_some());
        alive.map(|(name, row)| format!("{name}: {:?}", row.value)).collect()
    }

    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }
}

/// A value with a single holder.
fn filled(value: &str, token: i64, end: i64) -> String {
    value.replace(codec::TOKEN, &token.to_string()).replace(codec::END, &end.to_string())
}

fn replace(row: &mut Row, change: &RowChange) {
    (row.kind, row.value) = change.lock.clone().map(|(kind, value)| (kind.to_owned(), value)).unzip();
    (row.ends, row.fence) = (change.ends_ms as i64, change.fence as i64);
    if let Some(record) = &change.record {
        row.record = record.as_ref().map(|record| RecordColumns {
            bytes: record.value.value.to_vec(),
            at_us: record.value.at_us as i64,
            ends_ms: record.expires_ms.map(|ends| ends as i64),
        });
    }
}
