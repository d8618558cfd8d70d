//! `tenure bench`: what locks cost on the user's own store, compared with the bare commands.
//!
//! Each measurement alternates with that of the bare commands, so that both see the same load. All of it ends
//! after the requested time, and everything left behind is deleted.
//!
//! | module | what it holds |
//! |---|---|
//! | `bare` | the bare commands |
//! | `others` | those of servers other than Redis |
//! | `own` | the locks |
//! | `page` | the report as HTML |
//! | `report` | the report as text and JSON |
//! | `samples` | percentiles and histograms |

mod bare;
mod others;
mod own;
mod page;
mod report;
mod samples;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::diagnosis::Topology;
use tenure::{LockName, Locks};

use crate::cli::Bench;
use crate::exit::{BUSY, Failure, OWN, of_signal};
use crate::output::{self, Voice};
use crate::signals::{END_THE_WAIT, Signals};
use crate::store::{self, Guarantees};
use crate::{asked, clock, status};
use bare::{Bare, Directory, Servers};
use others::Others;
use own::Own;
use report::{Measured, Report};
use samples::Times;

/// How long a waiter waits before the lock is released to it.
const HEAD_START: Duration = Duration::from_millis(10);
/// Poll interval of a bare client without messages.
const POLL: Duration = Duration::from_millis(5);
/// Number of alternations per measurement.
const TURNS: u32 = 6;

/// Why a measurement is missing.
type Missing = String;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Uncontended,
    Contended,
    Handover,
    Renewal,
}

impl Part {
    const ALL: [Self; 4] = [Self::Uncontended, Self::Contended, Self::Handover, Self::Renewal];

    /// Its name, in reports and lock names.
    fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Contended => "contended",
            Self::Handover => "hand-over",
            Self::Renewal => "renewal",
        }
    }

    fn title(self, clients: usize) -> String {
        match self {
            Self::Uncontended => "acquire and release a free lock".into(),
            Self::Contended => format!("{clients} clients take turns: from the request to the grant"),
            Self::Handover => "from the release by one client to the grant of a waiter".into(),
            Self::Renewal => "renew a lease".into(),
        }
    }
}

/// The end of a measurement.
#[derive(Clone, Copy, Debug)]
struct Until(Duration);

impl Until {
    fn after(time: Duration) -> Self {
        Self(clock::now() + time)
    }

    fn left(self) -> Duration {
        self.0.saturating_sub(clock::now())
    }

    fn is_over(self) -> bool {
        self.left().is_zero()
    }
}

pub(crate) fn bench(args: &Bench) -> u8 {
    asked::run(Voice::LOUD, measured(args))
}

async fn measured(args: &Bench) -> Result<u8, Failure> {
    let mut signals = Signals::catch(&END_THE_WAIT)?;
    if let Some(path) = &args.html {
        // Fail before anything is measured.
        fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| cannot_write(path, &error))?;
    }
    let url = store::url(&args.store)?;
    let is_redis = Topology::knows(store::scheme(&url));
    let topology = is_redis.then(|| Topology::parse(&url)).transpose()?;
    let name = args.name.clone().unwrap_or_else(|| format!("bench-{:016x}", RandomState::new().hash_one(0)));
    // On a cluster all keys are on one node, like the bare key.
    let is_cluster = matches!(topology, Some(Topology::Cluster(_)));
    let name = if is_cluster && !name.contains('{') { format!("{{{name}}}") } else { name };
    let bare_name = LockName::new(&format!("{}{name}:bare", args.store.prefix))?;
    let open =
        || store::open_existing_with(&args.store, Guarantees::default(), |options| options.ttl(args.ttl));
    let clients: Result<Vec<_>, Failure> = (0..args.clients).map(|_| open()).collect();
    let own = Own { clients: clients?, name };
    for ready in join_all(own.clients.iter().map(Locks::ping)).await {
        ready?;
    }

    let names = Part::ALL.map(|part| own.name_of(part));
    for name in &names {
        if let Some(found) = own.clients[0].inspect(name.as_str()).await? {
            let (name, holders) = (&found.name, status::holders(&found));
            let message = format!("lock {name:?} is in use, by {holders}: choose another --name");
            return Err(Failure::new(BUSY, message));
        }
    }
    let count = own.clients.len();
    let mut bare = match &topology {
        Some(topology) => {
            let key = bare_name.as_str().to_owned();
            Ok(Bare::Servers(Servers::open(topology, key, args.ttl, count).await?))
        }
        None => match store::directory(&url) {
            Some(path) => Directory::make(path, bare_name.as_str(), count).map(Bare::Directory),
            None => {
                let others = Others::open(&url, bare_name.as_str(), count).await?;
                others.map(Bare::Others).ok_or_else(|| "this store has none".to_owned())
            }
        },
    };
    let full: Vec<_> = names.iter().map(|name| format!("{}{name}", args.store.prefix)).collect();
    if let Ok(bare) = &mut bare
        && bare.has_used(&full).await.is_ok_and(|used| used)
    {
        let message =
            format!("the store has keys of an earlier use of {:?}: choose another --name", own.name);
        return Err(Failure::new(BUSY, message));
    }

    let mut report = Report::new(own.clients[0].url(), args);
    let run = all_parts(&own, &mut bare, args.length, &mut report);
    let ended = signals.or_end(run).await;
    // Releases first: what is deleted below belongs to free locks.
    for client in own.clients {
        let _ = client.flush().await;
    }
    if let Ok(bare) = &mut bare {
        bare.clear_away(&full).await;
    }
    if let Ok(Err(failure)) = ended {
        return Err(failure);
    }
    if let Some(path) = &args.html {
        fs::write(path, page::page(&report)).map_err(|error| cannot_write(path, &error))?;
    }
    let told = if args.json { report.json() } else { report.text() };
    output::print(told)?;
    Ok(ended.map_or_else(of_signal, |_| 0))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(OWN, format!("cannot write {}: {error}", path.display()))
}

/// Runs all measurements in order. After a signal, the report has those completed so far.
async fn all_parts(
    own: &Own,
    bare: &mut Result<Bare, Missing>,
    length: Duration,
    report: &mut Report,
) -> Result<(), Failure> {
    // Taking turns takes two.
    let is_measured =
        |part: &Part| own.clients.len() > 1 || matches!(part, Part::Uncontended | Part::Renewal);
    let parts: Vec<Part> = Part::ALL.into_iter().filter(is_measured).collect();
    let time = length / parts.len() as u32;
    for part in parts {
        let (mut ours, mut theirs) = (Times::default(), Times::default());
        let until = Until::after(time);
        let owner = if part == Part::Renewal { Some(own.hold().await?) } else { None };
        let (what, mut missing) = match bare {
            Ok(bare) if part == Part::Renewal => (bare.what(part), bare.hold().await.err()),
            Ok(bare) => (bare.what(part), None),
            Err(why) => ("bare commands".to_owned(), Some(why.clone())),
        };
        while !until.is_over() {
            // Alternating exposes both sides to the same load.
            let turn = || Until::after((time / TURNS / 2).min(until.left()));
            match (part, &owner) {
                (Part::Uncontended, _) => own.pair(&mut ours).await?,
                (Part::Contended, _) => own.contended(turn(), &mut ours).await?,
                (Part::Handover, _) => own.handover(&mut ours).await?,
                (Part::Renewal, owner) => own.renew(owner.as_ref(), &mut ours).await?,
            }
            let (Ok(bare), None) = (&mut *bare, &missing) else { continue };
            let done = match part {
                Part::Uncontended => bare.pair(&mut theirs).await,
                Part::Contended => bare.contended(turn(), &mut theirs).await,
                Part::Handover => bare.handover(&mut theirs).await,
                Part::Renewal => bare.renew(&mut theirs).await,
            };
            missing = done.err();
        }
        if let Some(owner) = &owner {
            own.give_up(owner).await?;
            if let Ok(bare) = bare {
                let _ = bare.let_go().await;
            }
        }
        let bare = match missing {
            None => theirs.sorted().ok_or_else(|| "there was no time left".to_owned()),
            Some(why) => Err(why),
        };
        let title = part.title(own.clients.len());
        report.add(Measured { part: part.name(), title, own: ours.sorted(), what, bare });
    }
    Ok(())
}
