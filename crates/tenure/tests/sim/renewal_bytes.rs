//! Batched renewals, byte by byte: a connection that is cut within them, and swapped replies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::internals::store::redis::{Redis, Target};
use tenure::internals::{Runtime, locks};
use tenure::{Guard, Options, Owner};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{Sim, Stop};
use tenure_testkit::sim_transport::{Cut, Direction, SimTransport, Then};

const HELD: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const TTL: Duration = Duration::from_secs(3);

/// A process that holds six locks for seven seconds.
struct Life {
    sim: Sim,
    network: SimTransport,
    /// Number of scripts that renewed several locks.
    together: Arc<AtomicUsize>,
    /// The locks that the guards report as held at the end, and violations before.
    outcome: Arc<Mutex<(Vec<&'static str>, Vec<String>)>>,
}

impl Life {
    fn new() -> Self {
        let sim = Sim::new(Chooser::seeded(1));
        let network = SimTransport::new(&sim, false);
        let together = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&together);
        network.answer(move |words| {
            let is_many =
                words[0].starts_with("EVAL") && words[2].parse::<usize>().is_ok_and(|locks| locks > 2);
            seen.fetch_add(usize::from(is_many), Ordering::Relaxed);
            None
        });
        Self { sim, network, together, outcome: Arc::default() }
    }

    /// `when_held` gets the number of bytes that the first connection has carried in each direction by then.
    fn run(&self, when_held: impl FnOnce([u64; 2]) + Send + 'static) {
        let process = self.sim.process(Clock::default(), 1);
        let target = Target::parse("redis://network").expect("a URL");
        let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
        let store = Redis::over(target, Arc::new(self.network.clone()), Arc::clone(&runtime));
        let options = Options::new().ttl(TTL);
        let locks = locks(Arc::new(store), Arc::clone(&runtime), options).expect("the options are right");
        let (network, outcome, sim) = (self.network.clone(), Arc::clone(&self.outcome), self.sim.clone());
        let life = async move {
            let mut guards: Vec<Guard> = Vec::new();
            for name in HELD {
                guards.push(locks.mutex(name).expect("a name").lock().await.expect("a free lock"));
            }
            when_held(network.passed(0));
            let held = |guard: &&Guard| guard.is_held();
            for _ in 0..70 {
                runtime.sleep_until(runtime.now() + Duration::from_millis(100)).await;
                for guard in guards.iter().filter(held) {
                    let on_server = network.holder(guard.name().as_str()).unwrap_or_default();
                    if !on_server.starts_with(guard.owner().as_str()) {
                        let name = guard.name();
                        outcome.lock().expect("one thread").1.push(format!("{name}: {on_server:?} holds"));
                    }
                }
            }
            outcome.lock().expect("one thread").0 = HELD
                .into_iter()
                .zip(&guards)
                .filter(|(_, guard)| guard.is_held())
                .map(|(name, _)| name)
                .collect();
            sim.halt();
        };
        self.sim.spawn(process.id(), Box::pin(life));
        assert!(self.sim.run(60 * SECOND, 1_000_000) != Stop::Steps, "it turns in circles");
        self.sim.end();
    }

    #[track_caller]
    fn check(&self, held: &[&str], what: &str) {
        let outcome = self.outcome.lock().expect("one thread");
        assert_eq!((&outcome.0[..], &outcome.1[..]), (held, &[][..]), "{what}");
        assert!(self.together.load(Ordering::Relaxed) > 1, "{what}: the renewals leave one by one");
    }
}

#[test]
fn a_connection_that_is_cut_within_renewals_of_many_costs_no_lock() {
    let whole = Life::new();
    let held_at = Arc::new(Mutex::new([0; 2]));
    let told = Arc::clone(&held_at);
    whole.run(move |passed| *told.lock().expect("one thread") = passed);
    whole.check(&HELD, "nothing fails");
    assert_eq!(whole.network.connections(), 1);
    let held_at = *held_at.lock().expect("one thread");
    let mut lives = 0;
    for (way, direction) in [Direction::ToServer, Direction::ToClient].into_iter().enumerate() {
        // Covers the first batches and their replies.
        let end = whole.network.passed(0)[way].min(held_at[way] + 1_500);
        for after in (held_at[way]..end).step_by(3) {
            for then in [Then::Reset, Then::Silence, Then::Late(250 * MS), Then::Late(SECOND)] {
                let life = Life::new();
                life.network.cut(0, Cut { direction, after, then });
                life.run(|_| {});
                life.check(&HELD, &format!("{direction:?} cut after {after} bytes, then {then:?}"));
                lives += 1;
            }
        }
    }
    assert!(lives > 1_000, "{lives} lives: this shows little");
}

fn line(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// A lock is taken over, and the reply that should report it is replaced.
fn spoiled(what: &str, with: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Life {
    let life = Life::new();
    let (network, mut is_taken) = (life.network.clone(), false);
    life.run(move |_| {
        network.before("EVALSHA", move |server| {
            if !std::mem::replace(&mut is_taken, true) {
                server.take_over("c", &Owner::new("other").expect("an owner"));
            }
        });
        // Skips the replies to the acquisitions, and to the first renewal, which was sent without its script.
        network.spoil(HELD.len() + 1, move |reply| {
            let text = String::from_utf8(reply).expect("text");
            let (_, said) = text.trim_end().split_once("\r\n").unwrap_or_else(|| panic!("{text}"));
            with(said)
        });
    });
    life.check(&["a", "b", "d", "e", "f"], what);
    life
}

#[test]
fn a_reply_that_is_not_to_these_renewals_ends_the_connection() {
    let change = |what: &'static str, with: fn(&str) -> Vec<u8>| {
        let life = spoiled(what, with);
        assert!(life.network.connections() > 1, "{what}: the connection was kept");
    };
    change("another owner", |said| line(&format!("x{said}")));
    change("another request", |said| line(&said.replacen(' ', " 1", 1)));
    change("one too few", |said| line(said.rsplit_once(' ').expect("words").0));
    change("one too many", |said| line(&format!("{said} 7")));
    change("no number", |said| line(&said.replacen(" -", " x", 1)));
    change("no string", |_| b":1\r\n".to_vec());
    change("nothing", |_| b"_\r\n".to_vec());
}

#[test]
fn where_the_server_refuses_the_script_each_lock_is_asked_about_alone() {
    for error in ["-NOPERM No permissions to access a key\r\n", "-ERR of some kind\r\n"] {
        let life = spoiled(error, |_| error.as_bytes().to_vec());
        assert_eq!(life.network.connections(), 1, "{error}");
    }
}
