//! A lock with constant contention: the order and the delay of grants.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::Locks;
use tenure_testkit::servers::Server;
use tokio::runtime::Builder;

use crate::{Lock, median, now, row, start};

/// A turn: its beginning, end, owner and token.
type Turn = (u64, u64, String, u64);

/// Tasks of this process take turns for two seconds; prints every turn.
pub(crate) fn process(url: &str, kind: &str, tasks: usize) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let locks = Locks::open(url).expect("a store");
    let turns: Arc<Mutex<Vec<Turn>>> = Arc::default();
    let pid = std::process::id();
    runtime.block_on(async {
        let until = Instant::now() + Duration::from_secs(2);
        let all = (0..tasks).map(|task| {
            let (lock, turns) = (Lock::new(&locks, kind, "contended"), Arc::clone(&turns));
            tokio::spawn(async move {
                while Instant::now() < until {
                    let guard = lock.lock().await;
                    let began = now();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let turn = (began, now(), format!("{pid}.{task}"), guard.fence());
                    turns.lock().expect("no panic").push(turn);
                    guard.release().await.expect("a release");
                }
            })
        });
        for task in all.collect::<Vec<_>>() {
            task.await.expect("a task ends");
        }
    });
    let mut text = String::new();
    for (began, ended, who, fence) in turns.lock().expect("no panic").iter() {
        text.push_str(&format!("{began} {ended} {who} {fence}\n"));
    }
    print!("{text}");
}

pub(crate) fn turns(what: &str, server: &Server, kind: &str, processes: usize, tasks: usize, reach: f64) {
    let (mut shares, mut spreads) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let children: Vec<Child> = (0..processes)
            .map(|_| start(&["turns-of-a-process", &server.url(), kind, &tasks.to_string()]))
            .collect();
        let mut turns: Vec<Turn> = Vec::new();
        for child in children {
            let output = child.wait_with_output().expect("an end");
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [began, ended, who, fence] = words[..] else { continue };
                let number = |text: &str| text.parse::<u64>().expect("a number");
                turns.push((number(began), number(ended), who.to_owned(), number(fence)));
            }
        }
        turns.sort();
        assert!(turns.is_sorted_by(|one, next| one.1 <= next.0 && one.3 < next.3), "one after the other");
        // Only while all processes run.
        let (from, to) = (turns[0].0 + 300_000_000, turns[0].0 + 1_800_000_000);
        turns.retain(|(began, ended, ..)| *began >= from && *ended <= to);
        let holds: f64 = turns.iter().map(|(began, ended, ..)| (ended - began) as f64 / 1e9).sum::<f64>()
            / turns.len() as f64;
        let moved = turns.windows(2).filter(|pair| pair[0].2 != pair[1].2).count() as f64;
        shares.push(moved * holds / ((to - from) as f64 / 1e9));
        let mut each: BTreeMap<&str, f64> = BTreeMap::new();
        for (_, _, who, _) in &turns {
            *each.entry(who).or_default() += 1.0;
        }
        let mean = turns.len() as f64 / (processes * tasks) as f64;
        let least = if each.len() < processes * tasks {
            0.0
        } else {
            each.values().copied().fold(f64::MAX, f64::min)
        };
        let most = each.values().copied().fold(0.0, f64::max);
        spreads.push((most / mean - 1.0).max(1.0 - least / mean) * 100.0);
    }
    let share = median(shares);
    row(what, share, 1.0, share, &format!(">= {reach}"));
    println!(
        "{:<66} {:>9.0}%",
        "    the share of each task differs from the mean by at most",
        median(spreads)
    );
}
