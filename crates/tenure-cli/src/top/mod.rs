//! `tenure top`: the locks of a store on a full screen.
//!
//! | module | what it holds |
//! |---|---|
//! | `app` | the state of the screen and its reaction to keys |
//! | `screen` | drawing |

mod app;
mod screen;

use std::future::{Future, poll_fn};
use std::io::{self, IsTerminal};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crossterm::event::{Event as TerminalEvent, EventStream, KeyEventKind};
use futures_util::future::Fuse;
use futures_util::{FutureExt, StreamExt};
use ratatui::DefaultTerminal;
use rustix::process::Signal;
use tenure::Locks;
use tokio::time::{Interval, interval};

use crate::cli::Top;
use crate::exit::{Failure, USAGE, of_signal};
use crate::look::Look;
use crate::signals::{END_THE_WAIT, Signals};
use crate::table::{Row, walk};
use crate::{clock, store};
use app::{Action, App};

/// Shows the locks until a key or signal ends it; returns the exit code.
pub(crate) async fn top(args: &Top) -> Result<u8, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::new(USAGE, "top needs a terminal; elsewhere use `tenure list --watch`"));
    }
    let mut signals = Signals::catch(&END_THE_WAIT)?;
    let locks = store::open_existing(&args.locks.store)?;
    let look = Look::begin();
    let mut app =
        App::new(locks.url(), args.every, std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty()));
    // Fail before taking over the screen if the store is unreachable.
    let rows = store::unless_absent(&locks, rows(&locks, &args.locks.names)).await??;
    app.looked(Ok(rows), clock::unix(), look.took());
    let own = |error| Failure::own("cannot use the terminal", &error);
    let mut screen = Screen::open().map_err(own)?;
    let ended = run(&mut app, &locks, args, &mut signals, &mut screen.0).await;
    drop(screen);
    ended.map_err(own)
}

/// The terminal, restored on drop.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| drop(ratatui::try_restore()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

type Pending<T> = Fuse<Pin<Box<dyn Future<Output = T>>>>;

fn pending<T>(future: impl Future<Output = T> + 'static) -> Pending<T> {
    (Box::pin(future) as Pin<Box<dyn Future<Output = T>>>).fuse()
}

enum Event {
    Terminal(TerminalEvent),
    /// The terminal is gone.
    NoTerminal,
    Signal(Signal),
    Looked(Result<Vec<Row>, Failure>),
    Forced(Result<String, Failure>),
    Tick,
}

struct Sources<'a> {
    signals: &'a mut Signals,
    keys: EventStream,
    look: Pending<Result<Vec<Row>, Failure>>,
    force: Pending<Result<String, Failure>>,
    ticks: Interval,
}

impl Sources<'_> {
    async fn next(&mut self) -> Event {
        poll_fn(|context| {
            if let Poll::Ready(signal) = self.signals.poll(context) {
                return Poll::Ready(Event::Signal(signal));
            }
            if let Poll::Ready(event) = self.keys.poll_next_unpin(context) {
                let event = event.and_then(Result::ok);
                return Poll::Ready(event.map_or(Event::NoTerminal, Event::Terminal));
            }
            if let Poll::Ready(looked) = self.look.poll_unpin(context) {
                return Poll::Ready(Event::Looked(looked));
            }
            if let Poll::Ready(forced) = self.force.poll_unpin(context) {
                return Poll::Ready(Event::Forced(forced));
            }
            self.ticks.poll_tick(context).map(|_| Event::Tick)
        })
        .await
    }
}

#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
async fn run(
    app: &mut App,
    locks: &Locks,
    args: &Top,
    signals: &mut Signals,
    screen: &mut DefaultTerminal,
) -> io::Result<u8> {
    let mut events = Sources {
        signals,
        keys: EventStream::new(),
        look: Fuse::terminated(),
        force: Fuse::terminated(),
        ticks: interval(Duration::from_millis(250)),
    };
    let mut next = clock::now() + args.every;
    loop {
        screen.draw(|frame| screen::draw(frame, app, clock::unix()))?;
        match events.next().await {
            Event::Signal(signal) => return Ok(of_signal(signal)),
            Event::NoTerminal => return Ok(of_signal(Signal::HUP)),
            Event::Looked(rows) => {
                let look = app.seen.looking.unwrap_or_else(Look::begin);
                app.pause = look.pause(args.every, rows.is_ok());
                next = clock::now() + app.pause;
                app.looked(rows, clock::unix(), look.took());
            }
            Event::Forced(told) => {
                app.forced(told);
                next = clock::now();
            }
            Event::Terminal(TerminalEvent::Key(key)) if key.kind != KeyEventKind::Release => {
                match app.key(key) {
                    Some(Action::Quit) => return Ok(0),
                    Some(Action::Interrupt) => return Ok(of_signal(Signal::INT)),
                    Some(Action::Force { name, tokens }) => {
                        events.force = pending(force(locks.clone(), name, tokens));
                    }
                    None => {}
                }
            }
            // The content may have moved, even if the size is the same again by now.
            Event::Terminal(TerminalEvent::Resize(..)) => screen.clear()?,
            Event::Terminal(_) | Event::Tick => {}
        }
        let is_looking = !futures_util::future::FusedFuture::is_terminated(&events.look);
        if !app.is_paused() && !is_looking && clock::now() >= next {
            app.seen.looking = Some(Look::begin());
            let (locks, names) = (locks.clone(), args.locks.names.clone());
            events.look = pending(async move { rows(&locks, &names).await });
        }
    }
}

async fn rows(locks: &Locks, prefix: &str) -> Result<Vec<Row>, Failure> {
    Ok(walk(locks, prefix).await?.into_iter().map(|found| found.row).collect())
}

/// Ends the holds that the screen showed, but no later ones.
async fn force(locks: Locks, name: String, tokens: Vec<u64>) -> Result<String, Failure> {
    let mut ended = 0_u64;
    for token in tokens {
        if let tenure::ForcedRelease::Ended(_) = locks.force_release_token(name.as_str(), token).await? {
            ended += 1;
        }
    }
    Ok(match ended {
        0 => format!("{name}: these holds had already ended"),
        _ => format!("{name}: {} ended", crate::output::plural(ended, "hold")),
    })
}
