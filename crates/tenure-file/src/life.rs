//! Which holders named by a record are alive.

use super::directory::{Directory, HolderState};
use super::holders::HolderFiles;
use super::names::HolderId;
use super::record::FileRecord;
use tenure_core::planted::{Bug, planted};
use tenure_core::store::Failure;

/// Whether a holder is certainly dead.
pub(super) fn is_dead(directory: &Directory, holders: &HolderFiles, holder: HolderId) -> bool {
    !holders.is_mine(holder) && directory.life(holder) == HolderState::Dead && !planted(Bug::DeathIgnored)
}

/// The record without the holds and tickets of crashed processes. `None` if nothing is left or it is of
/// another boot.
pub(super) fn living(
    directory: &Directory,
    holders: &HolderFiles,
    record: FileRecord,
) -> Result<Option<FileRecord>, Failure> {
    if !is_of_this_boot(directory, holders, &record)? {
        return Ok(None);
    }
    Ok(record.without(|holder| is_dead(directory, holders, holder)))
}

pub(super) fn is_of_this_boot(
    directory: &Directory,
    holders: &HolderFiles,
    record: &FileRecord,
) -> Result<bool, Failure> {
    if record.boot == directory.boot() {
        return Ok(true);
    }
    // No process survives a reboot, so a live holder means that the boot ids differ for another reason.
    let is_alive = |holder| holders.is_mine(holder) || directory.life(holder) == HolderState::Alive;
    if record.bindings.iter().any(|(_, holder)| is_alive(holder)) {
        return Err(directory.other_boot());
    }
    Ok(false)
}
