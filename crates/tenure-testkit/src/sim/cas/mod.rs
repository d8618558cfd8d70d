//! Locks by compare-and-swap, like those on etcd and ZooKeeper, in the simulated world.

mod judge;
mod server;
mod state;

use std::sync::Arc;

use tenure::internals::Runtime;
use tenure::internals::protocol::lease;
use tenure::internals::store::cas;

use super::chooser::{Chooser, Rng};
use super::clock::{MS, SECOND, TrueTime};
use super::executor::Sim;
use super::host::Judge;
use super::regime::{Plan, Regime};
use super::report::Report;
use super::world::World;

pub use server::{Server, Versions};

/// Faults of such a server. It has no clock that decides about leases, loses no writes, and runs no scripts.
pub const REGIMES: &[Regime] = &[
    Regime::Quiet,
    Regime::Lossy,
    Regime::Slow,
    Regime::Pausing,
    Regime::Killing,
    Regime::Drifting,
    Regime::Tiny,
    Regime::Storm,
    Regime::Forgetting,
    Regime::Parted,
    Regime::Brink,
    Regime::LateMessages,
    Regime::Hiccup,
    Regime::Rush,
    Regime::Outage,
    Regime::OnTheDot,
    Regime::Fleeting,
    Regime::Flapping,
];

/// Runs the schedule of a seed in a regime, with or without a log.
pub fn run_in(regime: Regime, seed: u64, keep_log: bool) -> Report {
    schedule(regime, seed, keep_log, None)
}

/// Runs the schedule of a seed on a server with this kind of versions.
pub fn run_with(versions: Versions, seed: u64) -> Report {
    schedule(REGIMES[(seed % REGIMES.len() as u64) as usize], seed, false, Some(versions))
}

/// Runs the schedule of a seed on a server with compare-and-swap of one key, half of which expire markers.
pub fn run_one_key(regime: Regime, seed: u64, keep_log: bool) -> Report {
    schedule(regime, seed, keep_log, Some(Versions::OneKey { expires: (seed / 2).is_multiple_of(2) }))
}

/// The parameters of a schedule on such a server.
fn plan(sim: &Sim, regime: Regime, versions: Option<Versions>) -> Plan {
    let mut plan = Plan::draw(sim, regime);
    // A watch reports each change once, and requests do not use the server's time.
    (plan.faults.repeat_wake, plan.faults.limit, plan.faults.again) = (0, 0, 0);
    (plan.passes, plan.trips) = (false, 8);
    // A renewal does not notice a key deleted by hand, and a revoked session is noticed at its next
    // keep-alive.
    plan.node_faults.delete = 0;
    // The lifetime of a session: see `cas::leases`.
    let ttl = plan.ttl;
    plan.place_max = cas::PLACE_WAIT;
    // A hold that is being released lasts two seconds longer.
    plan.session = (ttl / 6 + lease::margin(ttl)).as_nanos() as TrueTime + 5 * SECOND;
    if let Some(Versions::OneKey { expires }) = versions {
        // A watch looks for the ends of sessions each second.
        plan.polls = 1_500 * MS;
        // The lifetime of a session begins when another client has first seen it.
        plan.session += if expires { 0 } else { ttl.as_nanos() as TrueTime + plan.session };
    }
    plan.strict_from += plan.session * u64::from(!regime.is_calm());
    plan
}

fn schedule(regime: Regime, seed: u64, keep_log: bool, versions: Option<Versions>) -> Report {
    // With other choices than the schedule of another store with this seed.
    let sim = Sim::new(Chooser::seeded(Rng::new(seed ^ u64::MAX >> 2).next()));
    let plan = plan(&sim, regime, versions);
    let drawn = if sim.chance(500) { Versions::Lasting } else { Versions::OfCreations };
    // Split queues, with parts short enough to matter.
    let part = [128, 1, 2, 3][sim.choose(4) as usize];
    let world = World::new(sim, seed, plan, keep_log, |sim, oracle, clock| {
        let runtime = sim.process(clock, seed) as Arc<dyn Runtime>;
        let judge = Judge { sim: sim.clone(), oracle: oracle.clone(), clock };
        let versions = versions.unwrap_or(drawn);
        Arc::new(Server::judged(runtime, versions, part, plan.faults, Some(judge)))
    });
    world.run()
}
