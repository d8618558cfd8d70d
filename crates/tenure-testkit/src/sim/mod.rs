//! The deterministic simulation: the real faces and the real engine, over a store and in a time of
//! our own making.
//!
//! A schedule is one short life of a small world, drawn from one number, the seed: a few processes
//! with clocks that disagree, tasks that lock, hold, lose, cancel and crash, and a network that
//! delays, loses and cuts. The same seed gives the same schedule, event for event, so what goes
//! wrong can be looked at again.
//!
//! | file | what it is |
//! |---|---|
//! | [`chooser`] | where every choice comes from: a seed, or a list of choices to repeat |
//! | [`clock`] | the clock of one machine, which runs a little wrong |
//! | [`event`] | what may happen in a schedule, and how often it did |
//! | [`executor`] | tasks, timers and processes in virtual time |
//! | [`network`] | what is between processes and a server: delays, losses, cut connections |
//! | [`driver`] | what plugs a store into the world: a simulated server, and a client for each process |
//! | [`store`] | the store that a process sees; `request` is a request on its way |
//! | [`server`] | the one store behind it, and the checks that only it can make |
//! | [`scripts`] | the real scripts beside it, in the slower profile |
//! | [`regime`] | which faults a schedule has, and how many |
//! | [`node_faults`] | what happens to whole processes and servers |
//! | [`oracle`] | what must never happen, judged in true time and from outside |
//! | `lock_request` | what a task may ask for: a lock of any kind |
//! | [`workload`] | what the tasks do |
//! | [`world`] | one schedule from its seed to its verdict |
//! | [`quorum`] | the same for a mutex on a majority of several servers |
//! | `cas` | stores by compare-and-swap: etcd, ZooKeeper |
//! | `files` | the same for processes that share a directory; in builds with `--cfg tenure_planted`, in which its store reports each request |
//! | [`report`] | what became of a schedule |
//! | [`hunt`] | many of them, for the tests of both |
//! | [`regressions`] | what they have found so far |

#[cfg(tenure_planted)]
pub mod cas;
pub mod chooser;
pub mod clock;
pub mod coverage;
pub mod driver;
pub mod event;
pub mod executor;
#[cfg(tenure_planted)]
pub mod files;
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
pub mod scenarios;
pub mod scripts;
pub mod server;
pub mod store;
pub mod workload;
pub mod world;
