//! The statements for an uncontended mutex and batched requests do what the state machine does, and the sweep
//! deletes only unused rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::internals::Driver;
use tenure::internals::protocol::{
    self, Answer, Fence, Liveness, LockSpec, Now, Op, ReleaseScope, State, Verb,
};
use tenure::internals::store::postgres::{open, sweep_sql};
use tenure::internals::store::{Opening, Store, StoreExt};
use tenure::{LockName, Owner, block_on};
use tenure_testkit::setting;
use tenure_testkit::sim::chooser::Rng;

use super::{SERVER, connect, locks, on, schema};

const TTL_MS: u64 = 600_000;
const WITHIN: Duration = Duration::from_secs(20);

/// A store, and a state machine beside it.
struct Twins {
    store: Arc<dyn Store>,
    schema: String,
    owners: Vec<Owner>,
    name: LockName,
    state: State,
    counter: u64,
    now_ms: u64,
    /// The store's token for each token of the machine.
    tokens: BTreeMap<u64, u64>,
    random: Rng,
    requests: u64,
}

impl Twins {
    fn new(seed: u64) -> Self {
        let schema = schema();
        let runtime = Driver::start().expect("a thread");
        let store = open(Opening { url: &SERVER.url(&schema), runtime, login: None }).expect("a store");
        let owners = (0..3).map(|_| Owner::new("twin").expect("an owner")).collect();
        let (state, tokens) = (State::default(), BTreeMap::new());
        let name = LockName::new("x").expect("a name");
        let (counter, now_ms, requests) = (0, 1_000_000, 0);
        Self { store, schema, owners, name, state, counter, now_ms, tokens, random: Rng::new(seed), requests }
    }

    fn below(&mut self, count: u64) -> u64 {
        self.random.below(count)
    }

    fn op(&mut self) -> Op {
        let at = self.below(3) as usize;
        let owner = self.owners[at].clone();
        let fence = Fence::Assign;
        let verb = match self.below(10) {
            0..=3 => Verb::Acquire {
                ttl_ms: TTL_MS,
                hold: 1,
                fence,
                wait_ms: None,
                listens: None,
                bind: Liveness::Process,
            },
            4..=5 => Verb::Renew { ttl_ms: TTL_MS, hold: 1, bind: None, weight: None },
            6..=8 => Verb::Release { hold: 1, fence, whose: ReleaseScope::Own },
            _ => Verb::Release { hold: 1, fence, whose: ReleaseScope::Any },
        };
        self.requests += 1;
        Op { name: self.name.clone(), spec: LockSpec::Mutex, owner, request: self.requests, verb }
    }

    /// Sends one request or a batch to both, and compares.
    fn step(&mut self, count: u64) {
        let ops: Vec<Op> = (0..count).map(|_| self.op()).collect();
        let asked = ops.iter().map(|op| self.store.request(op.clone(), WITHIN));
        let said = block_on(join_all(asked));
        self.now_ms += 1;
        for (op, said) in ops.iter().zip(said) {
            let said = said.unwrap_or_else(|failure| panic!("{op:?}: {failure}"));
            let now = Now { ms: self.now_ms, unix_us: self.now_ms };
            let (wanted, _) = protocol::apply(&mut self.state, &mut self.counter, now, op);
            let wanted = self.with_tokens_of_store(wanted, &said);
            assert_eq!(without_time(said), without_time(wanted), "{op:?}");
        }
    }

    /// The machine's answer with the store's tokens, which correspond one to one, in the same order.
    fn with_tokens_of_store(&mut self, wanted: Answer, said: &Answer) -> Answer {
        match (wanted, said) {
            (Answer::Held { fence }, Answer::Held { fence: given }) => {
                let last = self.tokens.values().max().copied().unwrap_or(0);
                let known = *self.tokens.entry(fence).or_insert(*given);
                assert!(known <= last || known == *given && *given > last, "{given} after {last}");
                Answer::Held { fence: known }
            }
            (Answer::Busy { holder, left_ms }, _) => {
                Answer::Busy { holder: self.of_store(holder.as_bytes()), left_ms }
            }
            (Answer::Found(mut found), _) => {
                for holder in &mut found.holders {
                    holder.value = self.of_store(&holder.value).into_bytes();
                }
                Answer::Found(found)
            }
            (wanted, _) => wanted,
        }
    }

    /// A holder, with the store's token.
    fn of_store(&self, holder: &[u8]) -> String {
        let (owner, fence) = protocol::parse_value(holder).expect("an owner and its token");
        format!("{owner}#{}", self.tokens[&fence])
    }

    /// All leases expire.
    fn lapse(&mut self) {
        self.now_ms += 10 * TTL_MS;
        SERVER.run(&format!("UPDATE {}.tenure_lock SET ends = 1 WHERE ends > 1", self.schema));
    }
}

fn without_time(answer: Answer) -> Answer {
    match answer {
        Answer::Busy { holder, .. } => Answer::Busy { holder, left_ms: None },
        Answer::Found(mut found) => {
            found.holders.iter_mut().for_each(|holder| holder.left_ms = None);
            Answer::Found(found)
        }
        answer => answer,
    }
}

#[test]
fn the_statements_for_a_mutex_answer_as_the_machine() {
    let steps = setting("TENURE_OPERATIONS").unwrap_or(1_500);
    let mut twins = Twins::new(7);
    for _ in 0..steps {
        match twins.below(20) {
            0 => twins.lapse(),
            1..=4 => {
                let count = 2 + twins.below(3);
                twins.step(count);
            }
            _ => twins.step(1),
        }
    }
    assert!(twins.tokens.len() > 50, "{} grants", twins.tokens.len());
}

#[test]
fn the_sweep_deletes_rows_of_no_use_and_no_others() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(15));
        for name in ["old", "held", "awaited", "recorded", "locked", "recent"] {
            let guard = locks.mutex(name).expect("a name").lock().await.expect("a guard");
            guard.release().await.expect("a release");
        }
        let table = format!("{schema}.tenure_lock");
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let fence = format!("{now} - 2 * 3600000000");
        let mut other = connect(&SERVER).await;
        let transaction = other.transaction().await.expect("a transaction");
        let lock = format!("UPDATE {table} SET fence = {fence}, awaited = 0 WHERE name = 'locked'");
        transaction.execute(&lock, &[]).await.expect("a locked row");
        // In one statement, because the client sweeps too, at a random time.
        let tokens = SERVER.run(&format!(
            "WITH aged AS (UPDATE {table} SET fence = {fence}, \
             awaited = CASE name WHEN 'awaited' THEN {now} / 1000 ELSE 0 END, \
             ends = CASE name WHEN 'held' THEN {now} / 1000 + 60000 ELSE ends END, \
             record = CASE name WHEN 'recorded' THEN 'x' ELSE record END, \
             record_ends = CASE name WHEN 'recorded' THEN {now} / 1000 + 60000 ELSE record_ends END \
             WHERE name IN ('old', 'held', 'awaited', 'recorded') RETURNING name, fence) \
             SELECT fence FROM aged WHERE name = 'old'"
        ));
        let sweep = sweep_sql(&table);
        let client = connect(&SERVER).await;
        // The sweep waits for no transaction.
        let swept = tokio::time::timeout(Duration::from_secs(10), client.query(&sweep, &[&""])).await;
        swept.expect("it does not wait").expect("a sweep");
        let left = || SERVER.run(&format!("SELECT string_agg(name, ' ' ORDER BY name) FROM {table}"));
        assert_eq!(left().trim(), "awaited held locked recent recorded");
        transaction.commit().await.expect("an end");
        client.query(&sweep, &[&""]).await.expect("a sweep");
        assert_eq!(left().trim(), "awaited held recent recorded");
        // The row without a name keeps the highest deleted token.
        let lowest = SERVER.run(&format!("SELECT fence FROM {table} WHERE name = ''"));
        let (lowest, token) = (lowest.parse::<u64>(), tokens.parse::<u64>());
        assert!(lowest.expect("a token") >= token.expect("a token"));
        let guard = locks.mutex("old").expect("a name").lock().await.expect("a guard");
        assert!(guard.fence() > tokens.parse().expect("a token"));
        guard.release().await.expect("a release");
        // After a TRUNCATE that row is missing.
        let aged = format!("UPDATE {table} SET fence = {fence}, ends = 0, awaited = 0 WHERE name = 'old'");
        SERVER.run(&format!("DELETE FROM {table} WHERE name = ''; {aged}"));
        for _ in 0..2 {
            client.query(&sweep, &[&""]).await.expect("a sweep");
        }
        assert_eq!(left().trim(), "awaited held recent recorded");
    });
}
