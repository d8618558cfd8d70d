//! The holder files that this store keeps flocked: one for the process, one for each hold of work that children inherit.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use super::bonds::Bonds;
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
    works: BTreeMap<LockName, BTreeMap<u64, Holder>>,
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
    /// Binds a hold like this.
    ///
    /// What is made here counts for nothing until [`settle`](Self::settle) was told that the record names it.
    pub(super) fn bind(
        &mut self,
        inside: &Inside<'_>,
        runtime: &dyn Runtime,
        name: &LockName,
        (number, bind): (u64, Bind),
        bonds: &mut Bonds,
    ) -> Result<(), Failure> {
        let holder = match bind {
            Bind::Lease => None,
            Bind::Process => {
                let process = match self.process.take() {
                    Some(process) => process,
                    None => Holder::create(inside, runtime, false)?,
                };
                Some(self.process.insert(process).id)
            }
            Bind::Work => {
                let named = bonds.holder_of(number);
                match self.works.get(name).and_then(|works| works.get(&number)) {
                    Some(work) if Some(work.id) == named => named,
                    _ => {
                        let work = Holder::create(inside, runtime, true)?;
                        let id = work.id;
                        if let Some(old) = self.works.entry(name.clone()).or_default().insert(number, work) {
                            inside.remove_holder(old.id);
                        }
                        Some(id)
                    }
                }
            }
        };
        bonds.bind(number, holder);
        Ok(())
    }

    /// Keeps what the lock's record names now, and lets go of the rest.
    pub(super) fn settle(&mut self, directory: &Directory, name: &LockName, bonds: &Bonds) {
        if self.process.as_ref().is_some_and(|process| bonds.names(process.id)) {
            if !self.bound.contains(name) {
                self.bound.insert(name.clone());
            }
        } else {
            self.bound.remove(name);
        }
        let Some(works) = self.works.get_mut(name) else { return };
        works.retain(|number, work| {
            let is_named = bonds.holder_of(*number) == Some(work.id);
            if !is_named {
                directory.remove_holder(work.id);
            }
            is_named
        });
        if works.is_empty() {
            self.works.remove(name);
        }
    }

    /// Whether this store itself keeps that holder alive.
    pub(super) fn is_mine(&self, id: HolderId) -> bool {
        self.process.as_ref().is_some_and(|process| process.id == id)
            || self.works.values().flat_map(BTreeMap::values).any(|work| work.id == id)
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
