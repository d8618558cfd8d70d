//! What `run` and `acquire` request.

use tenure::Locks;

use crate::cli::Request;
use crate::output::Voice;

/// The requested locks: all or none.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) request: &'a Request,
    pub(crate) also: &'a [String],
    pub(crate) locks: &'a Locks,
    pub(crate) voice: Voice,
    /// After a loss (`--retry-lost`), which the store's absence may have caused: an absent store is waited for.
    pub(crate) is_rerun: bool,
}

impl Wanted<'_> {
    /// NAME first, then the others in the order given.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        [&self.request.name].into_iter().chain(self.also)
    }
}
