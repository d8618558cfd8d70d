//! Deterministic simulation: the real API and engine, over a simulated store and in virtual time.
//!
//! A schedule is a short run of a small world, determined by a seed: a few processes with clocks that
//! disagree, tasks that lock, hold, lose, cancel and crash, and a network that delays, loses and cuts. The
//! same seed gives the same schedule, event for event, so failures can be replayed.
//!
//! | module | what it holds |
//! |---|---|
//! | `cas` | stores with compare-and-swap: etcd, ZooKeeper; only with `--cfg tenure_planted` |
//! | [`chooser`] | the source of all choices: a seed, or a list of choices to replay |
//! | [`clock`] | a machine's clock, which runs slightly fast or slow |
//! | [`coverage`] | which faults took effect |
//! | [`driver`] | the interface between a store and the simulated world |
//! | [`event`] | events that schedules should contain, and how often they occurred |
//! | [`executor`] | tasks, timers and processes in virtual time |
//! | `files` | processes that share a directory; only with `--cfg tenure_planted`, which makes the file store report each request |
//! | `host` | the machine of a simulated server that is not Redis |
//! | [`hunt`] | running many schedules, for the tests of all simulations |
//! | `lock_request` | what a task acquires |
//! | [`network`] | the network between processes and a server: delays, losses, cut connections |
//! | [`node_faults`] | faults of whole processes, connections and servers |
//! | [`oracle`] | the invariants, judged in true time and from outside |
//! | [`quorum`] | a mutex on a majority of several servers |
//! | [`regime`] | which faults a schedule has, and how many |
//! | [`regressions`] | schedules that once found a bug |
//! | [`report`] | the outcome of a schedule |
//! | `request` | a request in flight |
//! | `rows` | stores whose locks are rows of a table: PostgreSQL; only with `--cfg tenure_planted` |
//! | `scenarios` | schedules written by hand; only with `--cfg tenure_planted` |
//! | [`scripts`] | the real scripts, compared with their Rust twins |
//! | [`server`] | the simulated server |
//! | [`store`] | the store as a process sees it |
//! | [`workload`] | what the tasks do |
//! | [`world`] | one schedule, from its seed to its verdict |

#[cfg(tenure_planted)]
pub mod cas;
pub mod chooser;
pub mod clock;
pub mod coverage;
pub mod driver;
pub mod event;
pub mod executor;
#[cfg(all(tenure_planted, unix))]
pub mod files;
#[cfg(tenure_planted)]
mod host;
pub mod hunt;
mod lock_request;
pub mod network;
pub mod node_faults;
pub mod oracle;
pub mod quorum;
pub mod regime;
pub mod regressions;
pub mod report;
mod request;
#[cfg(tenure_planted)]
pub mod rows;
#[cfg(tenure_planted)]
pub mod scenarios;
pub mod scripts;
pub mod server;
pub mod store;
pub mod workload;
pub mod world;
