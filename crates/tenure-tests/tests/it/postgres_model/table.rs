//! The table of locks, and the effect of each statement of `tenure-postgres/src/statements.rs`.

use std::collections::{BTreeMap, BTreeSet};

use tenure::internals::protocol::codec::VERSION;
use tenure::internals::store::rows::{LockKey, RecordColumns, Renewals, Row as Told, RowChange};

/// A mistake in a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mistake {
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
}

const HOUR_US: i64 = 3_600_000_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
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

/// The table. Of the row without a name it has only the token.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<String, Row>,
    lowest: i64,
    mistake: Mistake,
    /// Rows swept at a time.
    part: usize,
    /// The violation of a checked-in hold, if there was one.
    pub(crate) wrong: Option<String>,
    /// Notifications of the current statement.
    pub(crate) said: Vec<String>,
}

/// The state of an acquire before it waits for the row.
pub(crate) struct Drawn {
    us: i64,
    token: i64,
}

impl Row {
    fn holds(&self, owner: &str) -> bool {
        let value = self.value.as_deref().and_then(|value| value.rsplit_once('#'));
        self.kind.as_deref() == Some("mutex")
            && value.is_some_and(|(held_by, fence)| held_by == owner && fence == self.fence.to_string())
    }

    /// Whether this state has a hold; its lease does not matter.
    fn has(&self, owner: &str, fence: i64) -> bool {
        let (kind, value) = (self.kind.as_deref(), self.value.as_deref().unwrap_or_default());
        match kind {
            Some("mutex") => value == format!("{owner}#{fence}"),
            Some("reentrant mutex") => {
                let is_fence = |line: &str| line == format!("#fence {fence}");
                value.lines().any(is_fence)
                    && value.lines().any(|line| line.starts_with(&format!("{owner} ")))
            }
            Some(_) => self.ticket(owner, fence).is_some(),
            None => false,
        }
    }

    /// The end of the lease of a hold in a queue.
    fn ticket(&self, owner: &str, fence: i64) -> Option<i64> {
        let mut lines = self.value.as_deref()?.lines();
        let mark: i64 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        lines.filter(|_| fence <= mark).find_map(|line| {
            let mut words = line.split(' ');
            let (number, _, deadline, by) = (words.next()?, words.next()?, words.next()?, words.next()?);
            (number == fence.to_string() && by == owner).then(|| deadline.parse().ok())?
        })
    }
}

impl Table {
    pub(crate) fn new(mistake: Mistake, part: usize) -> Self {
        Self { mistake, part, ..Self::default() }
    }

    pub(crate) fn draw(&self, name: &str, us: i64) -> Option<Drawn> {
        let is_held = self.rows.get(name).is_some_and(|row| row.value.is_some());
        (!is_held).then_some(Drawn { us, token: us.max(self.lowest + 1) })
    }

    pub(crate) fn acquire(&mut self, key: &LockKey, owner: &str, ttl_ms: i64, drawn: &Drawn) -> Option<i64> {
        let Drawn { us, token } = *drawn;
        let of_clock = self.mistake == Mistake::TokenOfClock;
        let row = match self.rows.get_mut(&key.name) {
            Some(row) if row.value.is_some() => return None,
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
        row.kind = Some("mutex".into());
        row.value = Some(format!("{owner}#{}", row.fence));
        row.ends = us / 1_000 + ttl_ms;
        Some(row.fence)
    }

    pub(crate) fn release(&mut self, name: &str, owner: &str, message: &str, us: i64) -> bool {
        let spares = self.mistake != Mistake::CheckInReleased;
        let Some(row) = self.rows.get_mut(name) else { return false };
        if !row.holds(owner) || row.ends < us / 1_000 || spares && !row.checked_in.is_empty() {
            return false;
        }
        (row.kind, row.value, row.ends) = (None, None, 0);
        row.serial += 1;
        if row.awaited >= us / 1_000 && self.mistake != Mistake::NothingSaid {
            self.said.push(message.to_owned());
        }
        self.judge(name);
        true
    }

    pub(crate) fn renew(
        &mut self,
        renewals: &Renewals,
        us: i64,
        is_locked: &dyn Fn() -> bool,
    ) -> Vec<(String, i64)> {
        let mistake = self.mistake;
        let mut renewed = Vec::new();
        for ((name, owner), ttl_ms) in renewals.names.iter().zip(&renewals.owners).zip(&renewals.ttls_ms) {
            let Some(row) = self.rows.get_mut(name) else { continue };
            let is_owner = match mistake {
                Mistake::OwnerUncompared => row.kind.as_deref() == Some("mutex"),
                _ => row.holds(owner),
            };
            if is_owner && row.ends >= us / 1_000 && !is_locked() {
                row.ends = row.ends.max(us / 1_000 + ttl_ms);
                row.serial += 1;
                renewed.push((name.clone(), row.fence));
            }
        }
        renewed
    }

    pub(crate) fn read(&self, names: &[String], with_records: bool, us: i64) -> Vec<Told> {
        let told = |name: &String| {
            let row = self.rows.get(name);
            Told {
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
    pub(crate) fn is_in_time(&self, change: &RowChange, us: i64) -> bool {
        change.until_ms as i64 >= us / 1_000 || self.mistake == Mistake::LateWriteTaken
    }

    pub(crate) fn write(
        &mut self,
        changes: &[(LockKey, RowChange)],
        us: i64,
        is_locked: &dyn Fn() -> bool,
    ) -> BTreeSet<String> {
        let mut written = BTreeSet::new();
        for (key, change) in changes {
            let is_spared = |row: &Row| {
                change.ends_hold && !row.checked_in.is_empty() && self.mistake != Mistake::CheckInUnseen
            };
            let awaited = match (self.rows.get_mut(&key.name), change.serial) {
                (Some(row), Some(serial)) => {
                    let is_same = row.serial == serial || self.mistake == Mistake::SerialUncompared;
                    if !is_same || is_spared(row) || is_locked() {
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
            written.insert(key.name.clone());
            self.judge(&key.name);
        }
        written
    }

    pub(crate) fn note_listeners(&mut self, keys: &[LockKey], us: i64) {
        let ms = us / 1_000;
        for key in keys {
            match self.rows.get_mut(&key.name) {
                Some(row) if row.awaited > ms + 240_000 => {}
                Some(row) => {
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

    pub(crate) fn list(&self, prefix: &str, after: &str, us: i64) -> Vec<Told> {
        let names = self
            .rows
            .iter()
            .filter(|(name, row)| name.starts_with(prefix) && name.as_str() > after && row.value.is_some());
        let names: Vec<String> = names.map(|(name, _)| name.clone()).take(500).collect();
        let whole =
            |told: Told| Told { whole: self.rows[&told.name].whole.clone(), fence: 0, serial: None, ..told };
        self.read(&names, false, us).into_iter().map(whole).collect()
    }

    pub(crate) fn sweep(&mut self, after: &str, us: i64, is_locked: &dyn Fn() -> bool) -> Option<String> {
        let part: Vec<String> =
            self.rows.keys().filter(|name| name.as_str() > after).take(self.part).cloned().collect();
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
            }
        }
        part.last().cloned()
    }

    /// Checks a hold in, if it is held.
    pub(crate) fn check_in(&mut self, name: &str, owner: &str, fence: i64, us: i64) -> bool {
        let Some(row) = self.rows.get_mut(name) else { return false };
        let is_queue = !matches!(row.kind.as_deref(), Some("mutex" | "reentrant mutex"));
        let ends = if is_queue { row.ticket(owner, fence) } else { Some(row.ends) };
        let is_held = row.has(owner, fence) && ends.is_some_and(|ends| ends.min(row.ends) >= us / 1_000);
        if is_held {
            row.checked_in.push((owner.to_owned(), fence));
        }
        is_held
    }

    /// The end of a transaction that has checked a hold in.
    pub(crate) fn check_out(&mut self, name: &str, owner: &str, fence: i64) {
        let Some(row) = self.rows.get_mut(name) else { return };
        let at = row.checked_in.iter().position(|(by, token)| by == owner && *token == fence);
        at.map(|at| row.checked_in.swap_remove(at));
    }

    /// Aborts open transactions.
    pub(crate) fn break_off(&mut self) {
        self.rows.values_mut().for_each(|row| row.checked_in.clear());
    }

    /// Checks that checked-in holds are still held.
    fn judge(&mut self, name: &str) {
        let Some(row) = self.rows.get(name) else { return };
        if let Some((owner, fence)) = row.checked_in.iter().find(|(owner, fence)| !row.has(owner, *fence)) {
            let text = format!("check-in: {owner}#{fence} is checked in, and there is {:?}", row.value);
            self.wrong.get_or_insert(text);
        }
    }

    /// The locks with a hold or a place that has not expired.
    pub(crate) fn left(&self, us: i64) -> Vec<String> {
        let alive = self.rows.iter().filter(|(_, row)| row.value.is_some() && row.ends >= us / 1_000);
        alive.map(|(name, row)| format!("{name}: {:?}", row.value)).collect()
    }

    /// The last token of a lock.
    pub(crate) fn token(&self, name: &str) -> i64 {
        self.rows.get(name).map_or(self.lowest, |row| row.fence)
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }
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
