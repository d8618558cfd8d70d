//! Histories of tasks that contend for locks, and a judge that looks for violations in them.
//!
//! A history contains only what callers can observe: when each asked, what it was told, and until when its
//! guard reported that it held. It can therefore be recorded on any store, by processes that share nothing
//! but the machine's clock. `tenure stress` judges real processes on real servers by it, and the simulation
//! its schedules; every planted bug that callers can observe shows that the judge detects it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`judge`] | the judge |
//! | [`mod@line`] | what a task was told, as it is written and read |
//! | [`merge`] | merging many histories into one |

pub mod judge;
pub mod line;
pub mod merge;
