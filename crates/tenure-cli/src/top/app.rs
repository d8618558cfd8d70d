//! The state of the screen and its reaction to keys, without a terminal or a store.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::exit::Failure;
use crate::observed::Observed;
use crate::table::{Filter, Row, Sort};

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// One lock, with its history.
    Lock,
    /// Part of a name is being typed.
    Filter,
    /// Asks twice before the holds on the screen are ended.
    Force {
        name: String,
        tokens: Vec<u64>,
        asked_twice: bool,
    },
}

#[derive(Debug)]
pub(super) struct App {
    pub(super) store: String,
    pub(super) every: Duration,
    /// The pause after the last scan.
    pub(super) pause: Duration,
    pub(super) without_colour: bool,
    pub(super) mode: Mode,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// What was observed of the store.
    pub(super) seen: Observed,
    /// The result of the last forced release.
    pub(super) news: Option<String>,
    selected: Option<String>,
    paused: bool,
    /// Indices of the rows shown, in order.
    order: Vec<usize>,
}

impl App {
    pub(super) fn new(store: &str, every: Duration, without_colour: bool) -> Self {
        Self {
            store: store.to_owned(),
            every,
            pause: every,
            without_colour,
            mode: Mode::Table,
            sort: Sort::Name,
            filter: String::new(),
            seen: Observed::default(),
            news: None,
            selected: None,
            paused: false,
            order: Vec::new(),
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn forced(&mut self, told: Result<String, Failure>) {
        self.news = Some(told.unwrap_or_else(|failure| failure.message));
    }

    /// Records the result of a scan at `at`, the time since 1970.
    pub(super) fn looked(&mut self, rows: Result<Vec<Row>, Failure>, at: Duration, took: Duration) {
        self.seen.looked(rows, at, took);
        self.arrange();
    }

    /// Filters and sorts once for many redraws, because there may be many thousands of locks.
    fn arrange(&mut self) {
        let (filter, rows) = (Filter::Name(self.filter.clone()), &self.seen.rows);
        self.order = (0..rows.len()).filter(|at| filter.keeps(&rows[*at])).collect();
        self.order.sort_by(|a, b| self.sort.compare(&rows[*a], &rows[*b]));
    }

    /// The rows shown, in order.
    pub(super) fn shown(&self) -> Vec<&Row> {
        self.order.iter().map(|at| &self.seen.rows[*at]).collect()
    }

    /// Index of the selected row among those shown, and its lock.
    pub(super) fn selected(&self) -> Option<(usize, String)> {
        let shown = self.shown();
        let is_it = |row: &&Row| Some(&row.name) == self.selected.as_ref();
        let at = shown.iter().position(is_it).unwrap_or(0);
        // The lock on display may be free by now.
        match (&self.mode, &self.selected) {
            (Mode::Lock, Some(name)) => Some((at, name.clone())),
            _ => shown.get(at).map(|row| (at, row.name.clone())),
        }
    }

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
        self.arrange();
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
        let Some(row) = self.seen.row(&name) else { return };
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
        assert_eq!((press(&mut app, "f"), &app.mode), (None, &Mode::Table));
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
    fn hand_overs_are_what_changed_between_looks() {
        let mut app = app(&[row("a", &[1]), row("b", &[5])]);
        assert_eq!(app.seen.handovers_per_second(), 0.0);
        for (second, rows) in [(102, vec![row("a", &[2])]), (104, vec![row("a", &[3]), row("b", &[6])])] {
            app.looked(Ok(rows), Duration::from_secs(second), Duration::ZERO);
        }
        assert_eq!(app.seen.handovers_per_second(), 3.0 / 4.0);
    }

    #[test]
    fn a_store_that_is_silent_leaves_what_was_seen_and_says_so() {
        let mut app = app(&[row("a", &[1])]);
        let failure = Failure::new(69, "no answer");
        app.looked(Err(failure), Duration::from_secs(102), Duration::ZERO);
        assert_eq!((app.seen.trouble(app.every).as_deref(), app.shown().len()), (Some("no answer"), 1));
        app.looked(Ok(vec![]), Duration::from_secs(104), Duration::ZERO);
        assert_eq!((app.seen.trouble(app.every).as_deref(), app.shown().len()), (None, 0));
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
        let lease = app.seen.lease(&app.seen.rows[0], Duration::from_secs(107));
        assert_eq!(lease, Some((Duration::from_secs(3), Duration::from_secs(10))));
    }
}
