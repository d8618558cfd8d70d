//! What `/proc` says of other processes.

use std::fs;

use rustix::process::{Pid, RawPid};

/// A process, or what is left of it until its parent has waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) has_ended: bool,
    pub(crate) parent: Option<Pid>,
    pub(crate) group: Option<Pid>,
}

/// All that this process may see.
pub(crate) fn all() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        parse(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
    })
}

fn parse(pid: Pid, stat: &str) -> Option<Process> {
    // The name before may have spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let mut pid_of = || fields.next()?.parse::<RawPid>().ok().map(Pid::from_raw);
    let (parent, group) = (pid_of()?, pid_of()?);
    Some(Process { pid, has_ended: matches!(state, "Z" | "X"), parent, group })
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpgrp, getpid, getppid};

    use super::*;

    #[test]
    fn this_process_is_found_with_its_parent_and_its_group() {
        let own = all().find(|process| process.pid == getpid());
        let expected = Process { pid: getpid(), has_ended: false, parent: getppid(), group: Some(getpgrp()) };
        assert_eq!(own, Some(expected));
    }

    #[test]
    fn a_name_with_parentheses_is_no_state() {
        let one = Pid::from_raw(1).expect("it is above 0");
        let found = parse(one, "1 (a) Z (b) S 0 7 7 0 -1").expect("a process");
        assert!(!found.has_ended && found.parent.is_none() && found.group.map(Pid::as_raw_pid) == Some(7));
    }
}
