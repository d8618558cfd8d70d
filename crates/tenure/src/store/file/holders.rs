//! The holder files that this store keeps flocked: one for the process, one for each hold of work that children inherit.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use super::directory::{Directory, Inside};
use super::record::HolderId;
use crate::name::LockName;
use crate::protocol::Bind;
use crate::runtime::Runtime;
use crate::store::Failure;

/// What this store's own holds are bound to.
#[derive(Debug, Default)]
pub(super) struct Holders {
    process: Option<Holder>,
    /// The names whose records named the process when they were last seen.
    bound: BTreeSet<LockName>,
    works: BTreeMap<LockName, Holder>,
}

/// An open holder file: flocked until the last process that has it open is gone.
#[derive(Debug)]
struct Holder {
    id: HolderId,
    _file: OwnedFd,
}

impl Holder {
    fn create(inside: &Inside<'_>, runtime: &dyn Runtime, inherit: bool) -> Result<Self, Failure> {
        let id = HolderId(runtime.random());
        Ok(Self { id, _file: inside.create_holder(id, inherit)? })
    }
}

impl Holders {
    /// The holder that a record must name for the hold to be bound like this; `named` is the one that it names now.
    ///
    /// What is made here counts for nothing until [`settle`](Self::settle) was told that the record names it.
    pub(super) fn bind(
        &mut self,
        inside: &Inside<'_>,
        runtime: &dyn Runtime,
        name: &LockName,
        bind: Bind,
        named: Option<HolderId>,
    ) -> Result<Option<HolderId>, Failure> {
        Ok(match bind {
            Bind::Lease => None,
            Bind::Process => {
                let process = match self.process.take() {
                    Some(process) => process,
                    None => Holder::create(inside, runtime, false)?,
                };
                Some(self.process.insert(process).id)
            }
            Bind::Work => match self.works.get(name) {
                Some(work) if Some(work.id) == named => named,
                _ => {
                    let work = Holder::create(inside, runtime, true)?;
                    let id = work.id;
                    if let Some(old) = self.works.insert(name.clone(), work) {
                        inside.remove_holder(old.id);
                    }
                    Some(id)
                }
            },
        })
    }

    /// Keeps what the lock's record names now, and lets go of the rest.
    pub(super) fn settle(&mut self, directory: &Directory, name: &LockName, named: Option<HolderId>) {
        if named.is_some() && named == self.process.as_ref().map(|process| process.id) {
            if !self.bound.contains(name) {
                self.bound.insert(name.clone());
            }
        } else {
            self.bound.remove(name);
        }
        if self.works.get(name).is_some_and(|work| Some(work.id) != named)
            && let Some(work) = self.works.remove(name)
        {
            directory.remove_holder(work.id);
        }
    }

    /// Whether this store itself keeps that holder alive.
    pub(super) fn is_mine(&self, id: HolderId) -> bool {
        self.process.as_ref().is_some_and(|process| process.id == id)
            || self.works.values().any(|work| work.id == id)
    }

    /// Leaves in good order: a file that no record names is removed; the others tell that their holds have ended.
    pub(super) fn leave(self, directory: &Directory) {
        if let Some(process) = &self.process
            && self.bound.is_empty()
        {
            directory.remove_holder(process.id);
        }
    }
}
