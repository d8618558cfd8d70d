//! Draws the screen.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TextLine, Span as TextSpan};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::app::{App, Mode};
use crate::observed::{End, History, SPAN};
use crate::output::{Line, Span, plural};
use crate::table::{Party, Row, fitted};

/// Columns of a lease bar.
const BAR: usize = 10;
/// Blue and orange, distinguishable for colour-blind readers.
const CALM: Color = Color::Indexed(32);
const URGENT: Color = Color::Indexed(214);

/// Draws the whole screen as of `now`, the time since 1970.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App, now: Duration) {
    let [head, state, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, app, head);
    draw_state(frame, app, now, state);
    match (&app.mode, app.selected()) {
        (Mode::Lock, Some((_, name))) => draw_lock(frame, app, &name, now, body),
        _ => draw_table(frame, app, now, body),
    }
    draw_foot(frame, app, foot);
}

fn style(app: &App, colour: Color) -> Style {
    if app.without_colour { Style::new().add_modifier(Modifier::BOLD) } else { Style::new().fg(colour) }
}

fn draw_head(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let counts = format!(
        "{}, {} waiting, {:.1} hand-overs/s",
        plural(app.seen.count() as u64, "lock"),
        app.seen.waits(),
        app.seen.handovers_per_second()
    );
    let most = usize::from(area.width).saturating_sub(counts.len() + 1);
    let store = fitted(&format!("tenure top  {}", app.store), most);
    let line = format!("{store} {counts}");
    frame.render_widget(Paragraph::new(line).style(Style::new().add_modifier(Modifier::BOLD)), area);
}

fn draw_state(frame: &mut Frame<'_>, app: &App, now: Duration, area: Rect) {
    let age = now.saturating_sub(app.seen.looked_at);
    let (text, colour) = match app.seen.trouble(app.every) {
        Some(why) => (format!("{} old: {why}", Span(age)), Some(URGENT)),
        None if app.is_paused() => (format!("paused, {} old", Span(age)), Some(URGENT)),
        None => {
            let took = app.seen.took.as_secs_f64() * 1_000.0;
            let (every, sort) = (Span(app.pause), app.sort.name());
            (format!("refreshed every {every}, in {took:.1} ms, sorted by {sort}"), None)
        }
    };
    let style = colour.map_or(Style::new(), |colour| style(app, colour));
    frame.render_widget(Paragraph::new(fitted(&text, area.width.into())).style(style), area);
}

fn draw_table(frame: &mut Frame<'_>, app: &App, now: Duration, area: Rect) {
    let rows = app.shown();
    let width = usize::from(area.width);
    let longest = rows.iter().map(|row| Line(&row.name).to_string().chars().count()).max().unwrap_or(0);
    let name = longest.clamp(12, (width / 3).max(12));
    let columns = [
        Constraint::Length(name as u16),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(4),
        Constraint::Length(7),
        Constraint::Length(BAR as u16 + 8),
        Constraint::Min(10),
    ];
    let header = TableRow::new(["NAME", "KIND", "PERMITS", "WAIT", "FOR", "LEASE", "HELD BY"]);
    let header = header.style(Style::new().add_modifier(Modifier::UNDERLINED));
    let selected = app.selected().map(|(at, _)| at);
    // Build cells only for rows that fit, because there may be many thousands.
    let most = usize::from(area.height.saturating_sub(1));
    let first = selected.map_or(0, |at| at.saturating_sub(most.saturating_sub(1)));
    let shown = rows.iter().skip(first).take(most);
    let cells = shown.map(|row| {
        let held_for = row.since().map_or("-".into(), |since| Span(now.saturating_sub(since)).to_string());
        TableRow::new([
            Cell::new(fitted(&row.name, name)),
            Cell::new(short_kind(&row.kind)),
            Cell::new(row.used()),
            Cell::new(row.waits()),
            Cell::new(held_for),
            lease(app, row, now),
            Cell::new(Line(&row.who()).to_string()),
        ])
    });
    let table = Table::new(cells, columns).header(header).column_spacing(1);
    let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(selected.map(|at| at - first));
    frame.render_stateful_widget(table, area, &mut state);
}

fn short_kind(kind: &str) -> String {
    match kind {
        "reentrant mutex" => "reentrant",
        "read-write lock" => "rwlock",
        "fair mutex" => "fair",
        kind => kind,
    }
    .to_owned()
}

/// A bar of the remaining lease, and the time.
fn lease(app: &App, row: &Row, now: Duration) -> Cell<'static> {
    let Some((left, whole)) = app.seen.lease(row, now) else { return Cell::new("no end") };
    let part = left.as_secs_f64() / whole.as_secs_f64().max(1e-9);
    let full = ((part * BAR as f64).ceil() as usize).min(BAR);
    // By the time a third is left, two renewals should have happened.
    let colour = if part < 1.0 / 3.0 { URGENT } else { CALM };
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR - full));
    let bar = TextSpan::styled(bar, style(app, colour));
    Cell::new(TextLine::from(vec![bar, TextSpan::raw(format!(" {}", Span(left)))]))
}

/// One lock: its holders, waiters and history.
fn draw_lock(frame: &mut Frame<'_>, app: &App, name: &str, now: Duration, area: Rect) {
    let party = |one: &Party| format!("{}{}", one.who(), one.hold(now, app.seen.looked_at));
    let mut lines = Vec::new();
    match app.seen.row(name) {
        None => lines.push(format!("{}: free", Line(name))),
        Some(row) => {
            let kind = &row.kind;
            let permits = row.permits.map_or(String::new(), |_| format!(", permits {}", row.used()));
            lines.push(format!("{}: {kind}{permits}", Line(name)));
            lines.extend(row.foreign.iter().map(|what| format!("  another program, {what}")));
            let ours = row.holders.iter().filter(|_| row.foreign.is_none());
            lines.extend(ours.map(|one| format!("  holder  {}", Line(&party(one)))));
            lines.extend(row.waiters.iter().map(|one| format!("  waiter  {}", Line(&party(one)))));
            if row.unlisted > 0 {
                lines.push(format!("  and {} more", row.unlisted));
            }
        }
    }
    // Leave room for the history beside a long queue.
    let most = usize::from(area.height / 2).max(3);
    if lines.len() > most {
        let more = lines.len() - most + 1;
        lines.truncate(most - 1);
        lines.push(format!("  and {more} more lines"));
    }
    lines.push(String::new());
    lines.push("history of 10 minutes: █ held  ▓ with waiters  │ hand-over  × lease expired".into());
    if let Some(history) = app.seen.history(name) {
        lines.push(format!(
            "  {}",
            strip(history, usize::from(area.width).saturating_sub(4), app.seen.looked_at)
        ));
        for hold in &history.holds {
            let seconds = hold.from.as_secs();
            let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
            let token = if hold.token > 0 { format!(", token {}", hold.token) } else { String::new() };
            let span = Span(hold.end.map_or(now, |(end, _)| end).saturating_sub(hold.from));
            let end = hold.end.map_or(String::new(), |(_, how)| format!(", {how}"));
            let who = Line(&hold.who);
            lines.push(format!("  {hour:02}:{minute:02}:{second:02} UTC  {who}{token}, for {span}{end}"));
        }
    }
    let lines: Vec<_> = lines.into_iter().map(TextLine::from).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// The time line of a lock up to `now`, one character per cell.
fn strip(history: &History, width: usize, now: Duration) -> String {
    let cell = SPAN / u32::try_from(width.max(1)).unwrap_or(u32::MAX);
    let start = now.saturating_sub(SPAN);
    let character = |at: usize| {
        let from = start + cell * at as u32;
        let to = from + cell;
        let ended = |how| {
            let is_it = |(end, why): (Duration, End)| why == how && (from..to).contains(&end);
            history.holds.iter().any(|hold| hold.end.is_some_and(is_it))
        };
        let is_held =
            history.holds.iter().any(|hold| hold.from < to && hold.end.is_none_or(|(end, _)| end > from));
        let waiting = history.waits.iter().rev().find(|(at, _)| *at < to).and_then(|(_, count)| *count);
        match is_held {
            _ if ended(End::Expired) => '×',
            _ if ended(End::HandedOver) => '│',
            true if waiting > Some(0) => '▓',
            true => '█',
            false => '·',
        }
    };
    (0..width).map(character).collect()
}

fn draw_foot(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let (text, is_urgent) = match (&app.mode, &app.news) {
        (Mode::Force { name, tokens, asked_twice: false }, _) => {
            let holds = plural(tokens.len() as u64, "hold");
            (format!("End {holds} of {name}? The next waiter gets the lock. y yes, any other key no"), true)
        }
        (Mode::Force { name, .. }, _) => (
            format!("The command of {name} may run on beside the next. Really? Y yes, any other key no"),
            true,
        ),
        (Mode::Filter, _) => (format!("names with: {}_", app.filter), false),
        (Mode::Lock, _) => ("q quit  esc back  f force  space pause".into(), false),
        (Mode::Table, Some(news)) => (news.clone(), false),
        (Mode::Table, None) => {
            let filter = if app.filter.is_empty() { String::new() } else { format!(" ({})", app.filter) };
            (
                format!("q quit  ↑↓ select  enter details  s sort  / filter{filter}  f force  space pause"),
                false,
            )
        }
    };
    let style = if is_urgent { style(app, URGENT) } else { Style::new() };
    frame.render_widget(Paragraph::new(fitted(&text, area.width.into())).style(style), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_marks_holds_waits_hand_overs_and_expiries() {
        let mut seen = crate::observed::Observed::default();
        let minute = |minute: u64| Duration::from_secs(60 * minute);
        for (at, token, left, waiters) in [
            (11, 1, 600, 0),
            (12, 1, 600, 1),
            (14, 2, 150, 0), // handed over
            (16, 2, 30, 0),  // not renewed
            (17, 0, 0, 0),   // expired
            (18, 3, 600, 0),
            (20, 3, 600, 0),
        ] {
            let holder = Party { token, left: Some(Duration::from_secs(left)), ..Party::default() };
            let holders = if token > 0 { vec![holder] } else { vec![] };
            let rows = vec![Row { name: "a".into(), holders, waiting: Some(waiters), ..Row::default() }];
            seen.looked(Ok(rows), minute(at), Duration::ZERO);
        }
        assert_eq!(strip(seen.history("a").expect("a history"), 10, minute(20)), "·█▓▓│█×·██");
    }
}
