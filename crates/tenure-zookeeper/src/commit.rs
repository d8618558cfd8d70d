//! A commit as the steps of one multi.

use super::messages::{ANY, Lasts, MultiOp, Rights};
use super::nodes::{Nodes, compared, part_path};
use tenure_core::cas::{PartChange, Session, Stamp, Swap, ValueChange};

/// A commit, with the paths and texts that its steps borrow.
pub(super) struct CommitSteps<'a> {
    change: &'a Swap,
    rights: Rights,
    pub(super) path: String,
    pub(super) marker: String,
    pub(super) record: String,
    /// Whether the record is assumed to exist.
    pub(super) has_record: bool,
    /// The child that identifies the creation of the lock's node.
    child: String,
    /// The new content of the lock's node.
    data: Option<String>,
    parts: Vec<(String, &'a PartChange)>,
    moved_from: Vec<String>,
    pub(super) victims: Vec<String>,
}

impl<'a> CommitSteps<'a> {
    pub(super) fn new(nodes: &Nodes, change: &'a Swap, creation: (Session, u64)) -> Self {
        let (path, head) = (nodes.lock_path(&change.name), format!("{:x}-{:x}", creation.0, creation.1));
        let markers = |sessions: &[Session]| sessions.iter().map(|session| nodes.marker(*session)).collect();
        Self {
            rights: nodes.rights,
            marker: nodes.marker(change.guard.0),
            record: nodes.record_path(&change.name),
            has_record: true,
            child: format!("{path}/{head}"),
            data: match &change.lock {
                ValueChange::Write(text) => Some(format!("{head}\n{text}")),
                ValueChange::Keep | ValueChange::Remove => None,
            },
            parts: change.parts.iter().map(|part| (part_path(&path, part.id), part)).collect(),
            moved_from: markers(&change.moved_from),
            victims: markers(&change.victims),
            change,
            path,
        }
    }

    /// All steps, and the index of the record's. The victims' steps are the last ones.
    pub(super) fn all(&self) -> (Vec<MultiOp<'_>>, usize) {
        let mut steps = vec![MultiOp::Check { path: &self.marker, version: compared(self.change.guard.1) }];
        steps.extend(self.moved_from.iter().map(|path| MultiOp::Check { path, version: ANY }));
        // Children are deleted before their parents.
        let removed = self.parts.iter().filter(|(_, part)| part.text.is_none());
        steps.extend(removed.map(|(path, _)| MultiOp::Delete { path, version: ANY }));
        steps.extend(self.lock());
        steps.extend(self.parts.iter().filter_map(|(path, part)| {
            let data = part.text.as_deref()?;
            Some(match part.is_new {
                true => self.create(path, data),
                false => MultiOp::Set { path, data, version: ANY },
            })
        }));
        let record_step = steps.len();
        let path = &self.record;
        match &self.change.record {
            ValueChange::Write(data) if self.has_record => {
                steps.push(MultiOp::Set { path, data, version: ANY })
            }
            ValueChange::Write(data) => steps.push(self.create(path, data)),
            ValueChange::Remove if self.has_record => steps.push(MultiOp::Delete { path, version: ANY }),
            ValueChange::Keep | ValueChange::Remove => {}
        }
        steps.extend(self.victims.iter().map(|path| MultiOp::Set { path, data: "", version: ANY }));
        (steps, record_step)
    }

    /// The steps that expect the lock's node to be as it was seen, and change it.
    fn lock(&self) -> Vec<MultiOp<'_>> {
        let (path, child) = (&self.path, &self.child);
        let at = |seen: Stamp| i32::try_from(seen.version - seen.base).unwrap_or(ANY - 1);
        match (self.change.seen, &self.data) {
            // A create within a multi does not return the node's stat, but a set does.
            (None, Some(data)) => {
                vec![self.create(path, ""), MultiOp::Set { path, data, version: 0 }, self.create(child, "")]
            }
            (Some(seen), Some(data)) => vec![
                MultiOp::Check { path: child, version: ANY },
                MultiOp::Set { path, data, version: at(seen) },
            ],
            (Some(seen), None) if self.change.lock == ValueChange::Keep => {
                vec![MultiOp::Check { path: child, version: ANY }, MultiOp::Check { path, version: at(seen) }]
            }
            (Some(seen), None) => vec![
                MultiOp::Delete { path: child, version: ANY },
                MultiOp::Delete { path, version: at(seen) },
            ],
            (None, None) => vec![self.create(path, ""), MultiOp::Delete { path, version: ANY }],
        }
    }

    fn create<'b>(&self, path: &'b str, data: &'b str) -> MultiOp<'b> {
        MultiOp::Create { path, data, lasts: Lasts::Always, rights: self.rights }
    }
}
