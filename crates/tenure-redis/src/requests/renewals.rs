//! Batched renewals of mutexes and queue holds by one script. Per lock this takes half the time of a separate
//! script, on the server and on the client.
//!
//! The reply has the token of each renewed lock. For a lock that was not renewed, a separate request finds
//! out why. If the server refuses the whole script, each lock gets a separate request, because the user may
//! have rights to some of the names only.

use futures_util::future::{FutureExt, join_all};

use crate::connection::pipeline::Pipeline;
use crate::replies::{self, failure};
use crate::requests::script::{RENEW, solo};
use crate::requests::{RequestContext, answered};
use crate::resp::Value;
use crate::resp::encode::Commands;
use crate::topology::slots;
use tenure_core::moment::Moment;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::{Answer, LockSpec, Op, Verb};
use tenure_core::store::Failure;

/// Maximum locks per script: the server needs a third of a millisecond for that many.
pub(crate) const MOST: usize = 64;
/// Maximum bytes of names and owners per script, unless it is a single lock: the server reads that much at
/// once.
const BYTES: usize = 16 * 1024;

/// Whether a renewal can be batched.
pub(crate) fn is_for(op: &Op, context: RequestContext) -> bool {
    op.spec != LockSpec::Reentrant
        && context.guarantees.acks == 0
        && !context.asking
        && matches!(op.verb, Verb::Renew { bind: None, weight: None, .. })
}

/// Sends renewals for which [`is_for`] holds, in as few scripts as the limits allow. Answers in the order of
/// `ops`; `None` where nothing was done and the lock needs a separate request.
pub(crate) async fn ask(
    pipeline: &Pipeline,
    ops: &[Op],
    deadline: Moment,
) -> Vec<Option<Result<Answer, Failure>>> {
    let mut asked = Vec::new();
    for together in parts(ops) {
        asked.push(async move {
            match ask_part(pipeline, together, deadline).await {
                Ok(answers) => answers.into_iter().map(|answer| answer.map(Ok)).collect(),
                // Separate requests find out which of the locks are affected.
                Err(failure) if is_of_this(&failure) => vec![None; together.len()],
                Err(failure) => vec![Some(Err(failure)); together.len()],
            }
        });
    }
    join_all(asked).await.into_iter().flatten().collect()
}

/// Whether the server refused this script, as opposed to redirecting all requests about these locks.
fn is_of_this(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(_)) && !failure::said_in(failure).is_some_and(slots::redirects)
}

/// Splits renewals into batches of one script each, in order.
fn parts(ops: &[Op]) -> Vec<&[Op]> {
    let (mut parts, mut rest) = (Vec::new(), ops);
    while let Some(first) = rest.first() {
        let mut bytes = 0;
        let fits = |op: &&Op| {
            bytes += op.name.as_str().len() + op.owner.as_str().len();
            bytes <= BYTES && lease_of(op) == lease_of(first)
        };
        let count = rest.iter().take(MOST).take_while(fits).count().max(1);
        let (part, others) = rest.split_at(count);
        parts.push(part);
        rest = others;
    }
    parts
}

fn lease_of(op: &Op) -> u64 {
    match op.verb {
        Verb::Renew { ttl_ms, .. } => ttl_ms,
        _ => 0,
    }
}

async fn ask_part(pipeline: &Pipeline, ops: &[Op], deadline: Moment) -> Result<Vec<Option<Answer>>, Failure> {
    // As for any request, the first after a reconnect sends its script in full.
    let in_full = pipeline.brings_script();
    let mut value = pipeline.send(deadline, |out| write(out, in_full, ops))?.last().await?;
    if let Value::ServerError(error) = &value
        && failure::is_no_script(error)
    {
        value = pipeline.send(deadline, |out| write(out, true, ops))?.last().boxed().await?;
    }
    let answers = replies::read_renewals(&answered(pipeline, value)?, ops).map_err(|what| {
        // Replies can no longer be matched with requests.
        pipeline.hang_up();
        Failure::Unknown(Failure::cause(what))
    })?;
    Ok(match &answers[..] {
        [first @ Some(_), ..] if planted(Bug::OneRenewedForAll) => vec![first.clone(); ops.len()],
        _ if planted(Bug::PartTakenForAll) && answers.contains(&Some(Answer::Free)) => {
            vec![Some(Answer::Free); ops.len()]
        }
        _ => answers,
    })
}

fn write(out: &mut Commands, in_full: bool, ops: &[Op]) {
    RENEW.call(out, in_full, ops.len(), 2 + ops.len());
    for op in ops {
        out.arg(op.name.as_str());
    }
    out.number(ops[0].request).number(lease_of(&ops[0]));
    for op in ops {
        out.parts(&[op.owner.as_str(), &solo(op.spec)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::name::LockName;
    use tenure_core::owner::Owner;
    use tenure_core::protocol::QueueSpec;

    fn renewal(name: &str, ttl_ms: u64) -> Op {
        let (name, owner) = (LockName::new(name).expect("a name"), Owner::new("x").expect("an owner"));
        let verb = Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None };
        Op { name, spec: LockSpec::Mutex, owner, request: 7, verb }
    }

    fn sizes(ops: &[Op]) -> Vec<usize> {
        parts(ops).iter().map(|part| part.len()).collect()
    }

    #[test]
    fn a_script_is_bounded_in_locks_and_bytes_and_has_one_lease() {
        let many: Vec<Op> = (0..150).map(|_| renewal("x", 30_000)).collect();
        assert_eq!(sizes(&many), [64, 64, 22]);
        let long = "x".repeat(6_000);
        let long: Vec<Op> = (0..5).map(|_| renewal(&long, 30_000)).collect();
        assert_eq!(sizes(&long), [2, 2, 1]);
        let huge = [renewal(&"x".repeat(40_000), 30_000), renewal("y", 30_000)];
        assert_eq!(sizes(&huge), [1, 1]);
        let mixed = [30_000, 30_000, 2_000, 30_000].map(|ttl_ms| renewal("x", ttl_ms));
        assert_eq!(sizes(&mixed), [2, 1, 1]);
        let mut kinds = [(); 2].map(|()| renewal("x", 30_000));
        kinds[1].spec = LockSpec::Queue(QueueSpec::FAIR);
        assert_eq!(sizes(&kinds), [2]);
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
