//! What many tasks that fought for locks were told, and what must not be in it.
//!
//! A history is what callers can see, and nothing else: when each asked, what it was told, and
//! until when its guard said that it held. So it can be written on any store, by processes that
//! know nothing of each other but the time of the machine that they are on. `tenure stress` judges
//! those of real processes on real servers by it, and the simulation those of its schedules: one
//! judge for both, and each planted bug that callers can see shows that it sees.
//!
//! | module | what |
//! |---|---|
//! | [`mod@line`] | what a task was told, as it is written down and read |
//! | [`merge`] | many histories become one |
//! | [`judge`] | what must not be |

pub mod judge;
pub mod line;
pub mod merge;
