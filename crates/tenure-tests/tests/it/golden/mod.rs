//! Directories as they were written when their format became number 4: later versions read and continue them, and
//! write the same.
//!
//! `golden/1/directory.txt` of the test kit has the files of each state, and what a listing told of them. With
//! `TENURE_WRITE_GOLDEN=1`, `directories_are_written_as_before` writes it anew, which is right only together with a new
//! number.

mod later;
mod servers;
mod states;
mod zookeeper;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tenure::{ForcedRelease, Kind, Locks, Outcome, Owner, Share, Status, block_on};

use states::STATES;

/// Tokens are the time of the acquisition in microseconds, or more.
const FIRST_TOKEN: u64 = 1_000_000_000_000_000;

/// Contents by file name; of a socket, nothing.
type Files = BTreeMap<String, String>;

#[derive(Debug, Default)]
struct Golden {
    state: String,
    files: Files,
    /// What the command listed.
    listed: Vec<Value>,
}

fn golden() -> Vec<Golden> {
    let (mut all, mut rest) =
        (Vec::<Golden>::new(), include_str!("../../../../tenure-testkit/golden/1/directory.txt"));
    while let Some((line, after)) = rest.split_once('\n') {
        rest = after;
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let last = all.last_mut();
        match (&words[..], last) {
            (["state", ..], _) => {
                let state = line["state ".len()..].to_owned();
                all.push(Golden { state, ..Golden::default() });
            }
            (["file", name, length], Some(golden)) => {
                let (content, after) = rest.split_at(length.parse().expect("a length"));
                golden.files.insert((*name).to_owned(), content.to_owned());
                rest = &after[1..];
            }
            (["socket", name], Some(golden)) => drop(golden.files.insert((*name).to_owned(), String::new())),
            (["told", ..], Some(golden)) => {
                golden.listed.push(serde_json::from_str(&line["told ".len()..]).expect("JSON"));
            }
            other => panic!("not a line: {other:?}"),
        }
    }
    assert_eq!(all.iter().map(|golden| golden.state.as_str()).collect::<Vec<_>>(), STATES);
    all
}

/// The golden data of a store.
fn path(store: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tenure-testkit/golden/1/{store}.txt"))
}

fn url(directory: &Path) -> String {
    format!("file:{}", directory.display())
}

fn files(directory: &Path) -> Files {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        let is_file = entry.file_type().expect("a type").is_file();
        let content = if is_file { fs::read_to_string(entry.path()).expect("text") } else { String::new() };
        (name, content)
    };
    fs::read_dir(directory).expect("a directory").map(read).collect()
}

/// The files without what differs from run to run: the boot, times, owners, the ids of holders, and the lengths and
/// sums that follow from them.
struct Normal {
    /// The last token.
    fence: u64,
    tokens: Vec<String>,
    owners: Vec<String>,
    holders: Vec<String>,
}

fn fence(files: &Files) -> u64 {
    let last = files["guard"].lines().nth(2).and_then(|line| line.strip_prefix("fence "));
    last.expect("a counter").parse().expect("a number")
}

impl Normal {
    fn of(files: &Files) -> Files {
        let mut normal =
            Self { fence: fence(files), tokens: Vec::new(), owners: Vec::new(), holders: Vec::new() };
        let text = |(name, content): (&String, &String)| {
            let mut lines: Vec<&str> = content.split_inclusive('\n').collect();
            // Holders are in the order of their ids, which are random.
            let holders = lines.split_mut(|line| !line.starts_with("holder-"));
            holders.for_each(|holders| {
                holders.sort_by_key(|line| line.split_once(' ').map(|(_, tokens)| tokens))
            });
            (name.clone(), lines.into_iter().map(|line| normal.line(name, line)).collect())
        };
        // The contents first, because names are sorted by ids.
        let lasting = files.iter().filter(|(name, _)| *name != "temp");
        let contents: Vec<(String, String)> = lasting.map(text).collect();
        contents.into_iter().map(|(name, content)| (normal.words(&name, &name), content)).collect()
    }

    fn line(&mut self, name: &str, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["sum", _] => "sum SUM\n".to_owned(),
            ["boot", _] => "boot BOOT\n".to_owned(),
            // An id of a hold.
            [id, count] if id.starts_with('#') && id != "#fence" => format!("#ID {count}\n"),
            // How long a computation took.
            [_, "v", .., took, fence] if name.starts_with("record-") => {
                self.words(name, &line.replace(&format!(" {took} {fence}"), &format!(" MS {fence}")))
            }
            ["bytes", name, _] => format!("bytes {name} LENGTH\n"),
            _ => self.words(name, line),
        }
    }

    fn words(&mut self, name: &str, line: &str) -> String {
        let is_word = |char: char| char.is_ascii_alphanumeric() || "-_./:%@".contains(char);
        let (mut normal, mut rest) = (String::new(), line);
        while !rest.is_empty() {
            let end = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            normal += &self.word(name, word);
            let end = after.find(is_word).unwrap_or(after.len());
            normal += &after[..end];
            rest = &after[end..];
        }
        normal
    }

    fn word(&mut self, name: &str, word: &str) -> String {
        let numbered = |known: &mut Vec<String>, one: &str| match known.iter().position(|known| known == one)
        {
            Some(at) => at,
            None => {
                known.push(one.to_owned());
                known.len() - 1
            }
        };
        if word.parse::<Owner>().is_ok() {
            return format!("OWNER{}", numbered(&mut self.owners, word));
        }
        let number = word.parse().ok().filter(|number| is_time(*number));
        let (is_time, is_record) = (number.is_some(), name.starts_with("record-"));
        if let Some(token) = number.filter(|number| FIRST_TOKEN < *number && *number <= self.fence) {
            let token = token.to_string();
            if !is_record || self.tokens.contains(&token) {
                return format!("TOKEN{}", numbered(&mut self.tokens, &token));
            }
        }
        let id = word.strip_prefix("holder-").or(word.strip_prefix("wake-")).unwrap_or(word);
        let is_id = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_id && !(is_time && is_record) {
            true => word.replace(id, &format!("HOLDER{}", numbered(&mut self.holders, id))),
            false if is_time => "TIME".to_owned(),
            false => word.to_owned(),
        }
    }
}

/// Whether a number is a time rather than a count. The clock of a machine that has just booted is as small as counts are.
fn is_time(number: u64) -> bool {
    const COUNTS: [u64; 2] = [1 << 20, (1 << 19) + 1]; // permits of a read-write lock
    let uptime = Duration::try_from(clock_gettime(ClockId::Boottime)).expect("a time");
    let started = uptime.saturating_sub(Duration::from_secs(60)).as_millis() as u64;
    number > 10_000_000 || number > started.max(100_000) && !COUNTS.contains(&number)
}

#[test]
fn directories_are_written_as_before() {
    if std::env::var_os("TENURE_WRITE_GOLDEN").is_some() {
        let file = path("directory");
        fs::write(file, STATES.map(written).concat()).expect("written");
        return;
    }
    for golden in golden() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = states::make(&golden.state, &url(directory.path()));
        assert_eq!(Normal::of(&files(directory.path())), Normal::of(&golden.files), "{}", golden.state);
        drop(kept);
    }
}

/// A state as `directory.txt` has it.
fn written(state: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let _kept = states::make(state, &url(directory.path()));
    let mut text = format!("state {state}\n");
    for (name, content) in files(directory.path()).iter().filter(|(name, _)| *name != "temp") {
        text += &match name.starts_with("wake-") {
            true => format!("socket {name}\n"),
            false => format!("file {name} {}\n{content}\n", content.len()),
        };
    }
    let statuses = block_on(list(&states::open(&url(directory.path())))).expect("a list");
    text + &statuses.iter().map(|status| format!("told {}\n", shown(status))).collect::<String>()
}

fn sum(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    format!("{:016x}", hasher.finish())
}

/// The files as if they had been written in this boot, and just now.
fn of_this_boot(files: &Files) -> Files {
    let directory = tempfile::tempdir().expect("a directory");
    let _kept = states::make("a mutex", &url(directory.path()));
    let now = self::files(directory.path());
    let second = |text: &str| text.lines().nth(1).expect("a boot").to_owned();
    let (boot, was) = (second(&now["guard"]), second(&files["guard"]));
    let lease = now.iter().find(|(name, _)| name.starts_with("lock-")).expect("a record").1;
    let later = lease.lines().find_map(|line| line.strip_prefix("ends ")).expect("an end");
    let later: u64 = later.parse().expect("a time");
    let record = |text: &str| match text.rsplit_once("sum ") {
        Some((body, old)) if text.starts_with("tenure lock") => {
            assert_eq!(sum(body), old.trim_end(), "{text}");
            let body = lasting(body, later).replace(&was, &boot);
            format!("{body}sum {}\n", sum(&body))
        }
        _ => text.replace(&was, &boot),
    };
    let now_us = unix_us();
    let beside = |text: &str| {
        let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        let number =
            |line: &str| line.trim_end().rsplit_once(' ').expect("a time").1.parse().expect("a number");
        let (at, ends): (u64, u64) = (number(&lines[1]), number(&lines[2]));
        lines[1] = format!("at {now_us}\n");
        lines[2] = format!("ends {}\n", ends - at + now_us);
        lines.concat()
    };
    let moved = |(name, text): (&String, &String)| {
        let text = match name.split('-').next() {
            Some("record") => beside(text),
            _ => record(text),
        };
        (name.clone(), text)
    };
    files.iter().map(moved).collect()
}

/// A record whose tickets all last until `later`.
fn lasting(body: &str, later: u64) -> String {
    let mut more = 0;
    let ticket = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [number, weight, deadline, owner] if owner.trim_end().parse::<Owner>().is_ok() => {
            let later = later.to_string();
            more += later.len() as i64 - deadline.len() as i64;
            format!("{number} {weight} {later} {owner}")
        }
        _ => line.to_owned(),
    };
    let lines: Vec<String> = body.split_inclusive('\n').map(ticket).collect();
    let line = |line: String| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["bytes", name, value] => {
            format!("bytes {name} {}\n", value.parse::<i64>().expect("a length") + more)
        }
        ["ends", ends] if ends != "never" => format!("ends {later}\n"),
        _ => line,
    };
    lines.into_iter().map(line).collect()
}

/// Format 1, and 4 of directories. Other data is that of another number, in a folder of its own.
#[test]
fn golden_data_of_a_number_never_changes() {
    for (store, expected) in [
        ("directory", "758b61feb7b43689"),
        ("etcd", "ba3ba856817bb8f2"),
        ("mysql", "65a625836e1563ec"),
        ("postgresql", "57977377cdbcc887"),
        ("quorum", "9af2daaecf1c7dba"),
        ("redis", "cf2a08b4462194f5"),
        ("zookeeper", "2e565990cfc8220f"),
    ] {
        assert_eq!(sum(&fs::read_to_string(path(store)).expect("golden data")), expected, "{store}");
    }
}

fn unix_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    now.as_micros().try_into().expect("a time before 586524")
}

/// What `list --json` says about a lock, without times.
fn shown(status: &Status) -> Value {
    let one = |holder: &tenure::Holder| {
        let weight = match holder.share {
            Share::Holds(count) | Share::Permits(count) => count,
            Share::Writer => 1 << 20,
            Share::Upgradeable => (1 << 19) + 1,
            _ => 1,
        };
        let fence = (holder.fence > 0).then_some(holder.fence);
        json!({ "owner": holder.owner.as_ref().map(Owner::as_str), "fence": fence, "weight": weight })
    };
    let all = |holders: &[tenure::Holder]| holders.iter().map(one).collect::<Vec<_>>();
    json!({
        "name": status.name.as_str(),
        "kind": status.kind.to_string(),
        "permits": status.permits,
        "holders": all(&status.holders),
        "waiters": all(&status.waiters),
    })
}

/// The same of what the command said.
fn told(lock: &Value) -> Value {
    let one = |holder: &Value| json!({ "owner": holder["owner"], "fence": holder["fence"], "weight": holder["weight"] });
    let all = |holders: &Value| holders.as_array().expect("holders").iter().map(one).collect::<Vec<_>>();
    json!({
        "name": lock["name"],
        "kind": lock["kind"],
        "permits": lock["permits"],
        "holders": all(&lock["holders"]),
        "waiters": all(&lock["waiters"]),
    })
}

async fn list(locks: &Locks) -> tenure::Result<Vec<Status>> {
    let (mut listing, mut all) = (locks.list("")?, Vec::new());
    while let Some(status) = listing.next().await? {
        all.push(status);
    }
    Ok(all)
}

#[test]
fn directories_of_before_are_read_and_continued() {
    for golden in golden() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let mut alive = Vec::new();
        for (name, content) in of_this_boot(&golden.files) {
            if name.starts_with("wake-") {
                continue;
            }
            fs::write(path.join(&name), content).expect("a file");
            if name.starts_with("holder-") {
                let file = File::open(path.join(&name)).expect("a holder");
                flock(&file, FlockOperation::NonBlockingLockExclusive).expect("a flock");
                alive.push(file);
            }
        }
        let locks = states::open(&url(path));
        block_on(go_on(&golden, &locks, alive)).unwrap_or_else(|error| panic!("{}: {error}", golden.state));
    }
}

async fn go_on(golden: &Golden, locks: &Locks, alive: Vec<File>) -> tenure::Result<()> {
    let state = golden.state.as_str();
    let statuses = list(locks).await?;
    let listed = statuses.iter().map(shown).collect::<Vec<_>>();
    assert_eq!(listed, golden.listed.iter().map(told).collect::<Vec<_>>(), "{state}");
    read_uses(state, &golden.files.values().cloned().collect::<String>(), locks).await?;
    // The processes die, which ends all holds that are bound to them.
    drop(alive);
    let mut token = fence(&golden.files);
    for status in statuses {
        let mut records = golden.files.iter().filter(|(name, _)| name.starts_with("lock-"));
        let is_bound = records.any(|(_, record)| !record.contains("\nholders 0\n"));
        let name = status.name.as_str();
        if !is_bound {
            let owner = status.holders[0].owner.clone().expect("an owner");
            let fence = status.holders[0].fence;
            assert!(locks.mutex(name)?.try_lock().await?.is_none(), "{state}");
            match locks.resume(name, &owner).await? {
                Some(guard) => {
                    assert_eq!(guard.fence(), fence, "{state}");
                    guard.release().await?;
                }
                None => {
                    let ended = locks.force_release_owner(name, &owner).await?;
                    assert!(matches!(ended, ForcedRelease::Ended(_)), "{state}");
                }
            }
        }
        let guard = match status.kind {
            Kind::Reentrant => locks.reentrant_mutex(name, &Owner::new("")?)?.try_lock().await?,
            Kind::Fair => locks.fair_mutex(name)?.try_lock().await?,
            Kind::Semaphore => locks.semaphore(name, status.permits.expect("permits"))?.try_acquire().await?,
            Kind::RwLock => {
                let guard = locks.rwlock(name)?.try_write().await?.expect(state);
                assert!(guard.fence() > token, "{state}");
                token = guard.fence();
                continue;
            }
            _ => locks.mutex(name)?.try_lock().await?,
        };
        let next = guard.expect(state).fence();
        assert!(next > token, "{state}");
        token = next;
    }
    Ok(())
}

/// `text` is what the store had.
async fn read_uses(state: &str, text: &str, locks: &Locks) -> tenure::Result<()> {
    let hour = Duration::from_secs(3_600);
    match state {
        "a leader that was asked to stop" => {
            let leader = locks.election("e", "")?.leader().await?.expect("a leader");
            assert_eq!(leader.payload, "10.0.0.7:81");
            let value = format!("{} {}", leader.fence, leader.owner);
            assert!(text.contains(&value), "{value}");
        }
        "a job that runs" | "a job that succeeded" | "a job that failed" => {
            let last = locks.once_per("j", hour)?.last().await?.expect("a run");
            let outcome = match state {
                "a job that runs" => Outcome::Running,
                "a job that succeeded" => Outcome::Done,
                _ => Outcome::Failed("full disk".to_owned()),
            };
            assert_eq!(last.outcome, outcome, "{state}");
            let job = locks.job("j").await?.expect("a run");
            assert_eq!((job.runs.len(), &job.runs[0].outcome), (1, &outcome), "{state}");
            assert_eq!((job.schedule.as_deref(), job.last.code), (Some("every 1h"), None), "{state}");
        }
        "a cached value" => {
            assert_eq!(locks.cache("c")?.get::<String>().await?.as_deref(), Some("a value"));
        }
        _ => {}
    }
    Ok(())
}
