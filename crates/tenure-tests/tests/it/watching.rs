//! What a `Locks` reports of itself: the tables of book/operate/monitoring.md, the dashboard, and the
//! counters.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tenure::metrics::{Groups, LockMetrics};
use tenure::{Locks, Options, Period, Renewal, block_on};
use tenure_testkit::servers::{Server, eventually};

const LIMIT: Duration = Duration::from_secs(20);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(root().join("book/operate/monitoring.md")).expect("the page")
}

fn quoted(cell: &str) -> BTreeSet<String> {
    let names = cell.split('`').skip(1).step_by(2);
    names.flat_map(|names| names.split(' ').map(str::to_owned)).collect()
}

/// The rows of the tables whose header begins like this, cell by cell.
fn rows(head: &str) -> Vec<Vec<String>> {
    let page = page();
    let mut rows = Vec::new();
    let mut is_in = false;
    for line in page.lines() {
        is_in = line.starts_with(head) || is_in && line.starts_with('|');
        if is_in && !line.starts_with(head) && !line.starts_with("|-") {
            rows.push(line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect());
        }
    }
    rows
}

/// An event's level, message and fields.
type Told = (String, BTreeSet<String>, BTreeSet<String>);

fn sources(directory: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, texts);
        } else {
            texts.push(fs::read_to_string(path).expect("a source"));
        }
    }
}

/// The events in the sources, by name.
fn told() -> BTreeMap<String, Told> {
    let mut texts = Vec::new();
    for name in ["", "-core", "-redis", "-file", "-mysql", "-postgres", "-etcd", "-zookeeper"] {
        sources(&root().join(format!("crates/tenure{name}/src")), &mut texts);
    }
    let mut all: BTreeMap<String, Told> = BTreeMap::new();
    for text in &texts {
        let code = text.split("#[cfg(test)]\nmod tests").next().expect("a first part");
        for event in code.split("event!(").skip(1) {
            let Some((level, rest)) = event.split_once(',') else { continue };
            if !matches!(level.trim(), "WARN" | "DEBUG") {
                continue; // the macro itself
            }
            let rest = rest.replace("target: \"tenure\",", "");
            let mut words = rest.split('"').skip(1).step_by(2);
            let (name, message) = (words.next().expect("a name"), words.next().expect("a message"));
            let after = rest.split_once(&format!("\"{message}\"")).expect("the message").1;
            let told = all.entry(name.to_owned()).or_default();
            told.0 = level.trim().to_lowercase();
            told.1.insert(message.to_owned());
            told.2.extend(fields(after));
        }
    }
    all
}

/// The field names of an event.
fn fields(after: &str) -> BTreeSet<String> {
    let (mut depth, mut fields, mut word) = (1, BTreeSet::new(), String::new());
    for char in after.chars() {
        match char {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            '=' if depth == 1 && !word.is_empty() => _ = fields.insert(std::mem::take(&mut word)),
            ',' | '\n' if depth == 1 => word.clear(),
            ' ' => {}
            char if depth == 1 => word.push(char),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    fields
}

#[test]
fn the_page_has_each_event_with_its_level_fields_and_message() {
    let mut told = told();
    let rows = rows("| event |");
    assert!(rows.len() > 25, "{rows:?}");
    for row in &rows {
        let [event, level, fields, message] = &row[..] else { panic!("{row:?}") };
        let event = quoted(event).pop_first().expect("a name");
        if event == "events_dropped" {
            continue; // emitted by `tracing` directly: events.rs
        }
        let (known_level, messages, known) = told.remove(&event).unwrap_or_else(|| panic!("no {event}"));
        assert_eq!((&known_level, &known), (level, &quoted(fields)), "{event}");
        assert!(messages.contains(message), "{event}: {messages:?}");
    }
    assert!(told.is_empty(), "the page lacks {told:?}");
}

/// A metric's type and labels, by its name.
type Series = BTreeMap<String, (String, BTreeSet<String>)>;

/// Counts of each sort: one lock of a group was held, lost and waited for; and those of a cache, a job and an
/// election.
fn used() -> Locks {
    let locks = Locks::memory().with(|options| options.groups(Groups::by_prefix(':'))).expect("options");
    block_on(use_each(&locks));
    let brief = locks.with(|options| options.ttl(Duration::from_millis(50)).renewal(Renewal::Off));
    let lost = block_on(brief.expect("options").mutex("a:1").expect("a name").lock()).expect("a free lock");
    assert!(block_on(lost.lost()).is_lost());
    let kept = locks.with(|options| options.ttl(Duration::from_millis(300))).expect("options");
    let renewed = block_on(kept.mutex("a:2").expect("a name").lock()).expect("a free lock");
    eventually("a renewal", Duration::from_secs(20), || locks.metrics().total().renewals > 0);
    block_on(renewed.release()).expect("a release");
    locks
}

/// Reads a cache three times, runs a job, and leads for a while.
async fn use_each(locks: &Locks) {
    let day = Duration::from_secs(86_400);
    let cache = locks.cache("c:1").expect("a cache");
    let failed = cache.get_or_compute(day, async || Err::<String, _>("no database")).await;
    assert!(failed.expect("a store").is_err());
    for _ in 0..2 {
        let value = cache.get_or_compute(day, async || Ok::<_, ()>("value".to_owned())).await;
        assert_eq!(value.expect("a store"), Ok("value".to_owned()));
    }
    let job = locks.once_per("j:1", Period::every(day)).expect("a job");
    let turn = job.try_begin().await.expect("a store").expect("a turn");
    turn.fail("once more").await.expect("its turn");
    let turn = job.try_begin().await.expect("a store").expect("the window is open again");
    turn.succeed().await.expect("its turn");
    let election = locks.election("e:1", "here").expect("an election");
    election.campaign().await.expect("a term").resign().await.expect("its term");
}

#[test]
fn what_caches_jobs_and_elections_came_to_is_counted() {
    let locks = Locks::memory();
    block_on(use_each(&locks));
    let total = locks.metrics().total();
    let uses: Vec<_> = total.uses.iter().map(|used| (used.what, used.result, used.count)).collect();
    let expected = [
        ("cache_reads", "fresh", 1),
        ("cache_reads", "missing", uses[1].2), // a caller that has the lock reads once more
        ("cache_fills", "filled", 1),
        ("cache_fills", "failed", 1),
        ("once_runs", "begun", 2),
        ("once_runs", "done", 1),
        ("once_runs", "failed", 1),
        ("terms", "elected", 1),
        ("terms", "resigned", 1),
    ];
    assert_eq!(uses, expected);
    assert!(uses[1].2 >= 2, "{uses:?}");
    assert_eq!(total.fill.count, 2);
}

/// The series in a text for Prometheus.
fn series(text: &str) -> Series {
    let mut series = Series::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').expect("a name and a type");
            series.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with("# HELP ") {
            let (name, rest) = line.split_once('{').expect("labels");
            let (labels, number) = rest.rsplit_once("} ").expect("a number");
            number.parse::<f64>().expect("a number");
            let suffixes = ["_bucket", "_sum", "_count"];
            let known = suffixes.iter().filter_map(|suffix| name.strip_suffix(suffix));
            let name = known.into_iter().find(|name| series.contains_key(*name)).unwrap_or(name);
            let labels = labels.split(',').map(|label| label.split('=').next().expect("a name").to_owned());
            let (_, all) = series.get_mut(name).unwrap_or_else(|| panic!("{name} has no type"));
            all.extend(labels.filter(|label| label != "le"));
        }
    }
    series
}

/// The series in the documentation.
fn documented() -> Series {
    let rows = rows("| name | type | labels |");
    let name = |cell: &String| quoted(cell).pop_first().expect("a name");
    rows.iter().map(|row| (name(&row[0]), (row[1].clone(), quoted(&row[2])))).collect()
}

#[test]
fn the_page_has_each_number_with_its_type_and_labels() {
    assert_eq!(series(&used().metrics().to_prometheus()), documented());
}

#[test]
fn each_query_of_the_dashboard_asks_for_what_exists() {
    let text = fs::read_to_string(root().join("book/operate/grafana.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut known: BTreeSet<String> = "sum rate increase max by le time histogram_quantile label_values"
        .split(' ')
        .map(str::to_owned)
        .collect();
    // Those of `tenure serve`, whose names tests/command/serve.rs compares with the page.
    known.extend(
        quoted(&page())
            .into_iter()
            .filter(|word| word.starts_with("tenure_job_") || word.starts_with("tenure_election_")),
    );
    known.extend(["name", "outcome", "election", "holder"].map(str::to_owned));
    let series = documented();
    for (name, (kind, labels)) in &series {
        known.extend(labels.iter().cloned());
        match kind.as_str() {
            "histogram" => {
                known.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")))
            }
            _ => _ = known.insert(name.clone()),
        }
    }
    let mut asked = BTreeSet::new();
    let mut queries = 0;
    each_query(&dashboard, &mut |query| {
        queries += 1;
        // Words outside quotes that are neither variables of Grafana nor durations.
        let words: String = query.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        for word in words.split(|char: char| !char.is_alphanumeric() && !matches!(char, '_' | '$')) {
            let first = word.chars().next();
            if first.is_some_and(|first| first.is_alphabetic()) {
                assert!(
                    known.contains(word),
                    "{word}, neither a metric of the library nor a known function: {query}"
                );
                asked.insert(word.to_owned());
            }
        }
    });
    assert!(queries >= 10, "{queries} queries");
    for name in series.keys() {
        assert!(asked.iter().any(|word| word.starts_with(name.as_str())), "no panel shows {name}");
    }
}

fn each_query(value: &serde_json::Value, found: &mut impl FnMut(&str)) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(query) if matches!(name.as_str(), "expr" | "query") && query.contains("tenure_") => {
                        found(query);
                    }
                    _ => each_query(value, found),
                }
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| each_query(value, found)),
        _ => {}
    }
}

#[test]
fn each_acquisition_is_counted_once_by_how_it_ended() {
    let locks = Locks::memory();
    let mutex = locks.mutex("x").expect("a name");
    let guard = block_on(mutex.lock()).expect("a free lock");
    assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    assert!(block_on(mutex.try_lock_for(Duration::from_millis(1))).expect("an answer").is_none());
    {
        let mut waiting = Box::pin(mutex.lock());
        let polled = block_on(async { futures_util::poll!(&mut waiting) });
        assert!(polled.is_pending());
        assert_eq!(locks.metrics().total().waiting, 1);
    }
    let other = locks.semaphore("x", 2).expect("a name");
    assert!(block_on(other.acquire()).expect_err("another kind").is_mismatch());
    let now = locks.metrics();
    let of = |kind| now.locks.iter().find(|locks| locks.kind == kind).expect("its numbers");
    let all =
        |LockMetrics { acquired, busy, timed_out, cancelled, failed, waiting, held, .. }: &LockMetrics| {
            [*acquired, *busy, *timed_out, *cancelled, *failed, *waiting, *held]
        };
    assert_eq!(all(of("mutex")), [1, 1, 1, 1, 0, 0, 1]);
    assert_eq!(all(of("semaphore")), [0, 0, 0, 0, 1, 0, 0]);
    assert_eq!((of("mutex").wait.count, of("mutex").hold.count), (1, 0));
    block_on(guard.release()).expect("a release");
    let total = locks.metrics().total();
    assert_eq!((total.held, total.hold.count, total.lost()), (0, 1, 0));
    assert_eq!(total.hold.buckets.last().expect("buckets").1, 1, "it was held for less than an hour");
    let asked = |verb| {
        let requests = locks.metrics().requests;
        requests.iter().filter(|request| request.verb == verb).map(|request| request.count).sum::<u64>()
    };
    assert!(asked("acquire") >= 5 && asked("release") == 1, "{:?}", locks.metrics().requests);
}

#[test]
fn a_lock_that_was_waited_for_is_a_handover_and_a_detached_one_is_resumed() {
    for kind in ["mutex", "fair mutex"] {
        let locks = Locks::memory();
        let lock = || match kind {
            "mutex" => block_on(locks.mutex("x").expect("a name").lock()),
            _ => block_on(locks.fair_mutex("x").expect("a name").lock()),
        };
        let first = lock().expect("a free lock");
        let second = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| lock().expect("a turn"));
            eventually("it waits", LIMIT, || locks.metrics().total().waiting == 1);
            block_on(first.release()).expect("a release");
            waiter.join().expect("a turn")
        });
        let owner = block_on(second.detach()).expect("detached");
        assert_eq!(locks.metrics().total().held, 0);
        let resumed = block_on(locks.resume("x", &owner)).expect("an answer").expect("still held");
        let total = locks.metrics().total();
        assert_eq!((total.acquired, total.handovers, total.resumed, total.held), (2, 1, 1, 1), "{kind}");
        drop(resumed);
    }
}

/// A waker that reads the counters.
struct Looks {
    locks: Locks,
    lost: AtomicU64,
}

impl std::task::Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.lost.store(self.locks.metrics().total().lost(), Ordering::Release);
    }
}

#[test]
fn a_loss_is_counted_before_its_owner_is_told() {
    let locks = Locks::memory();
    let looks = Arc::new(Looks { locks: locks.clone(), lost: AtomicU64::new(u64::MAX) });
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let mut lost = Box::pin(guard.lost());
    let waker = std::task::Waker::from(Arc::clone(&looks));
    assert!(lost.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    block_on(locks.force_release("x")).expect("an answer");
    assert!(block_on(guard.verify()).expect_err("lost").is_lost());
    assert_eq!(looks.lost.load(Ordering::Acquire), 1, "when the waker was called");
    assert_eq!(locks.metrics().total().losses, reasons([0, 0, 0, 1, 0]));
}

fn reasons(counts: [u64; 5]) -> Vec<(&'static str, u64)> {
    ["expired", "max_hold", "taken", "gone", "unrenewed"].into_iter().zip(counts).collect()
}

#[test]
fn losses_are_counted_by_reason() {
    let locks = Locks::memory();
    let brief = |options: Options| options.ttl(Duration::from_millis(60)).renewal(Renewal::Off);
    let (expires, ends) =
        (locks.with(brief), locks.with(|options| options.max_hold(Duration::from_millis(50))));
    let expires = block_on(expires.expect("options").mutex("a").expect("a name").lock()).expect("a lock");
    let ends = block_on(ends.expect("options").mutex("b").expect("a name").lock()).expect("a lock");
    for lost in [expires.lost(), ends.lost()] {
        assert!(block_on(lost).is_lost());
    }
    let taken = block_on(locks.mutex("c").expect("a name").lock()).expect("a free lock");
    block_on(locks.force_release("c")).expect("an answer");
    let _other = block_on(locks.mutex("c").expect("a name").lock()).expect("a free lock");
    assert!(block_on(taken.release()).expect_err("lost").is_lost());
    let total = locks.metrics().total();
    assert_eq!((total.losses, total.held), (reasons([1, 1, 1, 0, 0]), 1));
}

#[test]
fn numbers_stay_few_with_10_000_names() {
    let each = Groups::by(|name| name.get(..));
    let locks = Locks::memory().with(|options| options.groups(each)).expect("options");
    for number in 0..10_000 {
        let mutex = locks.mutex(format!("name-{number}")).expect("a name");
        drop(block_on(mutex.try_lock()).expect("an answer").expect("a free lock"));
    }
    let now = locks.metrics();
    assert_eq!((now.locks.len(), now.total().acquired), (101, 10_000));
    assert_eq!((now.group("name-7").acquired, now.group("other").acquired), (1, 9_900));
    assert!(now.to_prometheus().len() < 1_000_000);
}

#[test]
fn renewals_reconnects_and_requests_of_a_server_are_counted() {
    let server = Server::start();
    let locks = Locks::open(&server.url()).expect("a store");
    let locks = locks.with(|options| options.ttl(Duration::from_millis(900))).expect("options");
    let _guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    eventually("a renewal", LIMIT, || locks.metrics().total().renewals >= 1);
    assert_eq!(locks.metrics().reconnects, 0);
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually("a reconnect", LIMIT, || locks.metrics().reconnects >= 1);
    server.command(&["ACL", "SETUSER", "default", "-pexpire"]);
    eventually("a failed renewal", LIMIT, || locks.metrics().total().failed_renewals >= 1);
    eventually("the loss", LIMIT, || locks.metrics().total().losses[0] == ("expired", 1));
    let requests = locks.metrics().requests;
    let is_in =
        |verb, result| requests.iter().any(|request| (request.verb, request.result) == (verb, result));
    assert!(is_in("renew", "answered") && is_in("renew", "refused"), "{requests:?}");
}

/// A recorder of the crate `metrics`, by name and labels.
#[derive(Clone, Default)]
struct Kept(Arc<std::sync::Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Kept {
    fn of(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let key = format!("{} {}", key.name(), labels.join("\n"));
        Arc::clone(self.0.lock().expect("no panic").entry(key).or_default())
    }
}

/// Number of values recorded.
struct Times(Arc<AtomicU64>);

impl HistogramFn for Times {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Times(self.of(key))))
    }
}

#[test]
fn the_crate_metrics_gets_the_same_names_labels_and_numbers() {
    let kept = Kept::default();
    let locks = metrics::with_local_recorder(&kept, used);
    let mut heard = Series::new();
    let documented = documented();
    // The recorder counts background releases.
    eventually("both have the same", Duration::from_secs(20), || {
        let text = locks.metrics().to_prometheus();
        has_the_same(&kept, &text, &documented, &mut heard)
    });
    assert_eq!(heard, documented);
}

/// Whether each recorded number is in the text too.
fn has_the_same(kept: &Kept, text: &str, documented: &Series, heard: &mut Series) -> bool {
    kept.0.lock().expect("no panic").iter().all(|(key, number)| {
        let (name, labels) = key.split_once(' ').expect("labels");
        let kind = documented[name].0.clone();
        let names = labels.split('\n').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        heard.entry(name.to_owned()).or_insert_with(|| (kind.clone(), BTreeSet::new())).1.extend(names);
        let number = number.load(Ordering::Relaxed);
        let number = if kind == "gauge" { f64::from_bits(number) } else { number as f64 };
        let labels: Vec<_> = labels.split('\n').map(|label| label.replacen('=', "=\"", 1) + "\"").collect();
        let suffix = if kind == "histogram" { "_count" } else { "" };
        let series = format!("{name}{suffix}{{{}}} ", labels.join(","));
        match text.lines().find_map(|line| line.strip_prefix(&series)) {
            Some(known) => known.parse() == Ok(number),
            // Counters with many results are left out of the text until they occur.
            None => labels.len() > 2 && number == 0.0,
        }
    })
}
