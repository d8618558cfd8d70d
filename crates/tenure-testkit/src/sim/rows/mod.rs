//! Stores whose locks are rows of a table, as on PostgreSQL and MySQL, in the simulated world.

mod server;
mod table;

use std::sync::Arc;

use tenure::internals::Runtime;

use super::chooser::{Chooser, Rng};
use super::clock::{MS, SECOND, TrueTime};
use super::executor::Sim;
use super::host::Judge;
use super::regime::{Plan, RECOVERY, Regime};
use super::report::Report;
use super::world::World;
use table::Table;

pub use server::{Server, Transaction};
pub use table::{Database, Mistake};

/// What can happen to such a server. It has no token counter that could be evicted, and knows no scripts.
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
    Regime::Rewinding,
    Regime::Stepping,
    Regime::Brink,
    Regime::LateMessages,
    Regime::Hiccup,
    Regime::Rush,
    Regime::Outage,
    Regime::OnTheDot,
    Regime::Fleeting,
    Regime::Flapping,
];

/// Maximum interval at which waiters poll on MySQL. A test compares it with that of the store.
pub const POLLS: TrueTime = 250 * MS;

/// Runs the schedule of a seed, in the regime that the seed selects.
pub fn run(seed: u64) -> Report {
    run_with(Mistake::Nothing, Database::Postgres, seed)
}

/// Runs the schedule of a seed in a regime, on PostgreSQL, with or without a log.
pub fn run_in(regime: Regime, seed: u64, keep_log: bool) -> Report {
    schedule(regime, seed, keep_log, Mistake::Nothing, Database::Postgres)
}

/// Like `run_in`, on MySQL.
pub fn run_in_mysql(regime: Regime, seed: u64, keep_log: bool) -> Report {
    schedule(regime, seed, keep_log, Mistake::Nothing, Database::Mysql)
}

/// Runs the schedule of a seed on a server with this mistake.
pub fn run_with(mistake: Mistake, database: Database, seed: u64) -> Report {
    schedule(REGIMES[(seed % REGIMES.len() as u64) as usize], seed, false, mistake, database)
}

/// The numbers of a schedule on such a server.
fn plan(sim: &Sim, regime: Regime, database: Database) -> Plan {
    let mut plan = Plan::draw(sim, regime);
    (plan.polls, plan.kept) = if database == Database::Mysql { (POLLS, 0) } else { (0, 60 * SECOND) };
    // A notification arrives once, and no statement has its time from the server.
    (plan.faults.repeat_wake, plan.faults.limit, plan.faults.again) = (0, 0, 0);
    (plan.passes, plan.trips) = (false, 10);
    // Most requests are two statements, which wait for those of other tasks and are repeated after a conflict.
    let (low, high) = plan.faults.latency;
    plan.faults.latency = (low / 5, high / 5);
    if database == Database::Postgres && plan.node_faults.stall > 0 {
        // A stalled connection for messages is probed after 15 s, and given up 2 s later.
        plan.strict_from = plan.strict_from.max(plan.heals_at + 17 * SECOND + RECOVERY);
    }
    plan
}

fn schedule(regime: Regime, seed: u64, keep_log: bool, mistake: Mistake, database: Database) -> Report {
    // Not the choices of the schedule of another store that has this seed.
    let sim = Sim::new(Chooser::seeded(Rng::new(seed ^ u64::MAX >> 3).next()));
    let plan = plan(&sim, regime, database);
    let world = World::new(sim, seed, plan, keep_log, |sim, oracle, clock| {
        let runtime = sim.process(clock, seed) as Arc<dyn Runtime>;
        let judge = Judge { sim: sim.clone(), oracle: oracle.clone(), clock };
        let server = Server::judged(runtime, plan.faults, Table::new(mistake, database), 3, Some(judge));
        if plan.node_faults.rewind > 0 {
            server.remember();
        }
        if plan.node_faults.forget > 0 {
            server.may_crash();
        }
        Arc::new(server)
    });
    world.run()
}
