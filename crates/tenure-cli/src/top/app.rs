//! What the screen shows, and what keys do: no terminal and no store.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::exit::Failure;
use crate::table::{Filter, Row, Sort};

/// So many changes of a lock are kept, and so many locks' histories.
const CHANGES: usize = 100;
const HISTORIES: usize = 5_000;
/// Hand-offs are counted over this time.
const WINDOW: Duration = Duration::from_secs(30);

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Interrupt,
    /// End the holds with these tokens.
    Force {
        name: String,
        tokens: Vec<u64>,
    },
}

/// What the keys mean now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// One lock, with its history.
    Lock,
    /// A part of names is being typed.
    Filter,
    /// Asks before the holds that are shown are ended: once, and once more.
    Force {
        name: String,
        tokens: Vec<u64>,
        asked_twice: bool,
    },
}

/// A change that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Since 1970.
    pub(super) at: Duration,
    pub(super) what: String,
}

#[derive(Debug)]
pub(super) struct App {
    pub(super) store: String,
    pub(super) every: Duration,
    pub(super) without_colour: bool,
    pub(super) mode: Mode,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// What the last look said that failed.
    pub(super) trouble: Option<String>,
    /// What became of the last forced release.
    pub(super) news: Option<String>,
    /// When the store was looked at, and how long that took.
    pub(super) looked_at: Duration,
    pub(super) took: Duration,
    rows: Vec<Row>,
    /// The name of the lock that is selected.
    selected: Option<String>,
    paused: bool,
    histories: BTreeMap<String, VecDeque<Change>>,
    handoffs: VecDeque<(Duration, u64)>,
    /// When the first look was.
    since: Option<Duration>,
    /// The longest lease that each token was seen with.
    leases: BTreeMap<(String, u64), Duration>,
}

impl App {
    pub(super) fn new(store: &str, every: Duration, without_colour: bool) -> Self {
        Self {
            store: store.to_owned(),
            every,
            without_colour,
            mode: Mode::Table,
            sort: Sort::Name,
            filter: String::new(),
            trouble: None,
            news: None,
            looked_at: Duration::ZERO,
            took: Duration::ZERO,
            rows: Vec::new(),
            selected: None,
            paused: false,
            histories: BTreeMap::new(),
            handoffs: VecDeque::new(),
            since: None,
            leases: BTreeMap::new(),
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Takes in what a look found, at this time since 1970.
    pub(super) fn looked(&mut self, rows: Result<Vec<Row>, Failure>, at: Duration, took: Duration) {
        let rows = match rows {
            Ok(rows) => rows,
            Err(failure) => {
                self.trouble = Some(failure.message);
                return;
            }
        };
        self.trouble = None;
        let is_first = self.since.is_none();
        self.since.get_or_insert(at);
        let before: BTreeMap<&str, &Row> = self.rows.iter().map(|row| (row.name.as_str(), row)).collect();
        let (mut handoffs, mut changes) = (0, Vec::new());
        for row in &rows {
            let old = before.get(row.name.as_str()).map(|row| &row.holders[..]).unwrap_or_default();
            for holder in &row.holders {
                if !old.iter().any(|old| old.token == holder.token) {
                    handoffs += u64::from(!is_first);
                    changes.push((row.name.clone(), format!("{}, token {}", holder.who(), holder.token)));
                }
            }
        }
        let held: BTreeMap<&str, ()> = rows.iter().map(|row| (row.name.as_str(), ())).collect();
        let freed = before.keys().filter(|name| !held.contains_key(*name));
        changes.extend(freed.map(|name| ((*name).to_owned(), "free".to_owned())));
        for (name, what) in changes {
            if self.histories.len() < HISTORIES || self.histories.contains_key(&name) {
                let history = self.histories.entry(name).or_default();
                history.push_front(Change { at, what });
                history.truncate(CHANGES);
            }
        }
        self.handoffs.push_back((at, handoffs));
        while self.handoffs.front().is_some_and(|(then, _)| *then + WINDOW < at) {
            self.handoffs.pop_front();
        }
        let mut leases = std::mem::take(&mut self.leases);
        for row in &rows {
            for holder in &row.holders {
                let key = (row.name.clone(), holder.token);
                let seen = leases.remove(&key).unwrap_or_default();
                self.leases.insert(key, seen.max(holder.left.unwrap_or_default()));
            }
        }
        (self.rows, self.looked_at, self.took) = (rows, at, took);
    }

    pub(super) fn forced(&mut self, told: Result<String, Failure>) {
        self.news = Some(told.unwrap_or_else(|failure| failure.message));
    }

    /// Those that are shown, in their order.
    pub(super) fn shown(&self) -> Vec<&Row> {
        let filter = Filter::Name(self.filter.clone());
        let mut rows: Vec<Row> = self.rows.iter().filter(|row| filter.keeps(row)).cloned().collect();
        self.sort.apply(&mut rows);
        let by_name: BTreeMap<&str, &Row> = self.rows.iter().map(|row| (row.name.as_str(), row)).collect();
        rows.iter().filter_map(|row| by_name.get(row.name.as_str()).copied()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn waiting(&self) -> u64 {
        self.rows.iter().map(Row::waiting).sum()
    }

    /// How many were seen each second; at least.
    pub(super) fn handoffs_per_second(&self) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        let time = (self.looked_at.saturating_sub(since)).min(WINDOW).max(Duration::from_secs(1));
        let count: u64 = self.handoffs.iter().map(|(_, count)| count).sum();
        count as f64 / time.as_secs_f64()
    }

    /// What is left of the lease that ends first, and how long that lease was at least.
    pub(super) fn lease(&self, row: &Row, now: Duration) -> Option<(Duration, Duration)> {
        let holder = row.holders.iter().min_by_key(|holder| (holder.left.is_none(), holder.left))?;
        let left = holder.left?.saturating_sub(now.saturating_sub(self.looked_at));
        let whole = self.leases.get(&(row.name.clone(), holder.token)).copied().unwrap_or(left);
        Some((left, whole.max(left)))
    }

    pub(super) fn history(&self, name: &str) -> impl Iterator<Item = &Change> {
        self.histories.get(name).into_iter().flatten()
    }

    /// Which of the shown rows is selected, and its lock.
    pub(super) fn selected(&self) -> Option<(usize, String)> {
        let shown = self.shown();
        let is_it = |row: &&Row| Some(&row.name) == self.selected.as_ref();
        let at = shown.iter().position(is_it).unwrap_or(0);
        // A lock that is looked at may be free by now.
        match (&self.mode, &self.selected) {
            (Mode::Lock, Some(name)) => Some((at, name.clone())),
            _ => shown.get(at).map(|row| (at, row.name.clone())),
        }
    }

    pub(super) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Does what a key asks for.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(Action::Interrupt);
        }
        self.news = None;
        match (self.mode.clone(), key.code) {
            (Mode::Filter, KeyCode::Enter) => self.mode = Mode::Table,
            (Mode::Filter, KeyCode::Esc) => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            (Mode::Filter, KeyCode::Backspace) => drop(self.filter.pop()),
            (Mode::Filter, KeyCode::Char(char)) => self.filter.push(char),
            (Mode::Filter, _) => {}
            (Mode::Force { name, tokens, asked_twice: false }, KeyCode::Char('y')) => {
                self.mode = Mode::Force { name, tokens, asked_twice: true };
            }
            // Another key than the first, which may have been held down.
            (Mode::Force { name, tokens, asked_twice: true }, KeyCode::Char('Y')) => {
                self.mode = Mode::Table;
                return Some(Action::Force { name, tokens });
            }
            (Mode::Force { .. }, _) => self.mode = Mode::Table,
            (Mode::Lock, KeyCode::Esc | KeyCode::Enter) => self.mode = Mode::Table,
            (_, KeyCode::Char('q')) | (Mode::Table, KeyCode::Esc) => return Some(Action::Quit),
            (_, KeyCode::Char('f')) => self.ask_before_force(),
            (_, KeyCode::Char(' ')) => self.paused = !self.paused,
            (Mode::Table, KeyCode::Char('s')) => self.sort = self.sort.next(),
            (Mode::Table, KeyCode::Char('/')) => self.mode = Mode::Filter,
            (Mode::Table, KeyCode::Enter) => {
                if let Some((_, name)) = self.selected() {
                    (self.mode, self.selected) = (Mode::Lock, Some(name));
                }
            }
            (Mode::Table, KeyCode::Up | KeyCode::Char('k')) => self.select(-1),
            (Mode::Table, KeyCode::Down | KeyCode::Char('j')) => self.select(1),
            (Mode::Table, KeyCode::PageUp) => self.select(-10),
            (Mode::Table, KeyCode::PageDown) => self.select(10),
            (Mode::Table, KeyCode::Home) => self.select(isize::MIN / 2),
            (Mode::Table, KeyCode::End) => self.select(isize::MAX / 2),
            _ => {}
        }
        None
    }

    fn select(&mut self, by: isize) {
        let names: Vec<String> = self.shown().iter().map(|row| row.name.clone()).collect();
        let at = self.selected().map_or(0, |(at, _)| at as isize);
        let to = (at + by).clamp(0, names.len().saturating_sub(1) as isize);
        self.selected = names.into_iter().nth(to as usize);
    }

    fn ask_before_force(&mut self) {
        let Some((_, name)) = self.selected() else { return };
        let Some(row) = self.row(&name) else { return };
        if row.foreign.is_some() {
            self.news = Some(format!("{name} is another program's: use tenure release --force --foreign"));
            return;
        }
        let tokens = row.holders.iter().map(|holder| holder.token).filter(|token| *token > 0).collect();
        self.mode = Mode::Force { name, tokens, asked_twice: false };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Party;

    fn row(name: &str, tokens: &[u64]) -> Row {
        let left = Some(Duration::from_secs(10));
        let holder = |token: &u64| Party { token: *token, left, ..Party::default() };
        Row { name: name.into(), holders: tokens.iter().map(holder).collect(), ..Row::default() }
    }

    fn app(rows: &[Row]) -> App {
        let mut app = App::new("file:x", Duration::from_secs(2), false);
        app.looked(Ok(rows.to_vec()), Duration::from_secs(100), Duration::ZERO);
        app
    }

    fn press(app: &mut App, keys: &str) -> Option<Action> {
        let code = |char| match char {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            'v' => KeyCode::Down,
            char => KeyCode::Char(char),
        };
        keys.chars().map(|char| app.key(KeyEvent::new(code(char), KeyModifiers::NONE))).last().flatten()
    }

    #[test]
    fn holds_are_ended_only_after_two_different_answers() {
        let end = Some(Action::Force { name: "b".into(), tokens: vec![2, 3] });
        for (keys, expected) in
            [("vf", None), ("vfy", None), ("vfyy", None), ("vfY", None), ("vfn", None), ("vfyY", end)]
        {
            let mut app = app(&[row("a", &[1]), row("b", &[2, 3])]);
            assert_eq!(press(&mut app, keys), expected, "{keys}");
        }
        let foreign = Row { foreign: Some("a string".into()), ..row("a", &[0]) };
        let mut app = app(&[foreign]);
        assert_eq!(press(&mut app, "fyY"), None);
        assert!(app.news.is_some_and(|news| news.contains("--foreign")));
    }

    #[test]
    fn what_is_ended_is_what_was_shown_when_it_was_asked() {
        let mut app = app(&[row("a", &[1])]);
        press(&mut app, "f");
        app.looked(Ok(vec![row("a", &[2])]), Duration::from_secs(102), Duration::ZERO);
        assert_eq!(press(&mut app, "yY"), Some(Action::Force { name: "a".into(), tokens: vec![1] }));
    }

    #[test]
    fn hand_offs_and_histories_are_what_changed_between_looks() {
        let mut app = app(&[row("a", &[1]), row("b", &[5])]);
        assert_eq!(app.handoffs_per_second(), 0.0);
        for (second, rows) in [(102, vec![row("a", &[2])]), (104, vec![row("a", &[3]), row("b", &[6])])] {
            app.looked(Ok(rows), Duration::from_secs(second), Duration::ZERO);
        }
        assert_eq!(app.handoffs_per_second(), 3.0 / 4.0);
        let told = |name| app.history(name).map(|change| change.what.clone()).collect::<Vec<_>>();
        assert_eq!(told("b").len(), 3);
        assert!(told("b")[0].ends_with("token 6") && told("b")[1] == "free", "{:?}", told("b"));
    }

    #[test]
    fn a_store_that_is_silent_leaves_what_was_seen_and_says_so() {
        let mut app = app(&[row("a", &[1])]);
        let failure = Failure { code: 69, message: "no answer".into() };
        app.looked(Err(failure), Duration::from_secs(102), Duration::ZERO);
        assert_eq!((app.trouble.as_deref(), app.shown().len()), (Some("no answer"), 1));
        app.looked(Ok(vec![]), Duration::from_secs(104), Duration::ZERO);
        assert_eq!((app.trouble.as_deref(), app.shown().len()), (None, 0));
    }

    #[test]
    fn a_filter_and_the_selection_stay_with_their_lock() {
        let mut app = app(&[row("ab", &[1]), row("b", &[2]), row("c", &[3])]);
        press(&mut app, "v");
        assert_eq!(app.selected(), Some((1, "b".into())));
        press(&mut app, "/b\n");
        assert_eq!(app.shown().len(), 2);
        assert_eq!(app.selected(), Some((1, "b".into())));
        press(&mut app, "\n");
        app.looked(Ok(vec![]), Duration::from_secs(102), Duration::ZERO);
        assert_eq!((&app.mode, app.selected()), (&Mode::Lock, Some((0, "b".into()))));
        assert_eq!(press(&mut app, "\x1bq"), Some(Action::Quit));
    }

    #[test]
    fn a_lease_is_a_part_of_the_longest_that_was_seen() {
        let mut app = app(&[row("a", &[1])]);
        let mut shorter = row("a", &[1]);
        shorter.holders[0].left = Some(Duration::from_secs(4));
        app.looked(Ok(vec![shorter]), Duration::from_secs(106), Duration::ZERO);
        let lease = app.lease(&app.rows[0], Duration::from_secs(107));
        assert_eq!(lease, Some((Duration::from_secs(3), Duration::from_secs(10))));
    }
}
