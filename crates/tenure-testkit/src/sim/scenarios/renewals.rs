//! Batched renewals, on a server byte by byte.

use std::sync::Arc;
use std::time::Duration;

use tenure::internals::store::redis::{Redis, Target};
use tenure::internals::{Runtime, locks};
use tenure::{Guard, Locks, Options, Owner};

use super::Outcome;
use crate::fake_redis::server::Server;
use crate::sim::chooser::Chooser;
use crate::sim::clock::{Clock, SECOND};
use crate::sim::executor::Sim;
use crate::sim_transport::SimTransport;

const HELD: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The lock that is affected.
const ODD: &str = "c";

/// A process holds five locks. `happens` runs before the second script that renews all of them; exactly one
/// lock must be lost.
fn play(happens: impl FnMut(&mut Server) + Send + 'static) -> Outcome {
    let sim = Sim::new(Chooser::replay(Vec::new()));
    let network = SimTransport::new(&sim, false).direct();
    let process = sim.process(Clock { offset: 1_000 * SECOND, ppm: 0 }, 1);
    let target = Target::parse("redis://network").expect("a URL");
    let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
    let store = Redis::over(target, Arc::new(network.clone()), Arc::clone(&runtime));
    let options = Options::new().ttl(Duration::from_secs(3));
    let locks = locks(Arc::new(store), Arc::clone(&runtime), options).expect("the options are right");
    let played = async move { scenario(&locks, &*runtime, &network, happens).await };
    super::play(&sim, process.id(), played, 60 * SECOND)
}

async fn scenario(
    locks: &Locks,
    runtime: &dyn Runtime,
    network: &SimTransport,
    mut happens: impl FnMut(&mut Server) + Send + 'static,
) -> Outcome {
    let mut guards: Vec<Guard> = Vec::new();
    for name in HELD {
        guards.push(locks.mutex(name)?.lock().await?);
    }
    let mut renewals = 0;
    network.before("EVALSHA", move |server| {
        renewals += 1;
        if renewals == 2 {
            happens(server);
        }
    });
    runtime.sleep_until(runtime.now() + Duration::from_secs(10)).await;
    let held = HELD.iter().zip(&guards).filter(|(_, guard)| guard.is_held()).map(|(name, _)| *name);
    let (held, expected): (Vec<_>, Vec<_>) =
        (held.collect(), HELD.iter().filter(|name| **name != ODD).collect());
    if held.iter().ne(expected.iter().copied()) {
        return Err(format!("{held:?} are held").into());
    }
    match HELD.iter().filter(|name| **name != ODD).find(|name| network.holder(name).is_none()) {
        Some(name) => Err(format!("the server has no {name}, whose guard says that it is held").into()),
        None => Ok(()),
    }
}

pub(super) fn the_one_of_many_that_was_taken_over_is_lost() -> Outcome {
    let other = Owner::new("other")?;
    play(move |server| server.take_over(ODD, &other))
}

pub(super) fn those_beside_one_that_is_gone_are_kept() -> Outcome {
    play(|server| server.delete(ODD))
}
