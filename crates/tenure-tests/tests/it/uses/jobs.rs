//! The jobs and elections of a store, as an operator sees them.

use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use tenure::{ElectionStatus, JobStatus, Locks, Outcome};
use tenure_testkit::servers::Server;

use super::{Store, eventually, everywhere, on};
use crate::common::ms;

const HOUR: Duration = Duration::from_secs(3_600);

async fn jobs(locks: &Locks, prefix: &str) -> Vec<JobStatus> {
    let (mut jobs, mut found) = (locks.jobs(prefix).expect("a prefix"), Vec::new());
    while let Some(job) = jobs.next().await.expect("an answer") {
        found.push(job);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

async fn elections(locks: &Locks, prefix: &str) -> Vec<ElectionStatus> {
    let (mut elections, mut found) = (locks.elections(prefix).expect("a prefix"), Vec::new());
    while let Some(election) = elections.next().await.expect("an answer") {
        found.push(election);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Names that a store writes in another form. On a cluster, each must be in one slot with its record.
fn odd_names(store: &Store) -> &'static [&'static str] {
    match store.name {
        "cluster" => &["odd {x}", "odd/\u{e4} *?[a]\\"],
        _ => &["odd {x}", "odd a}b", "odd/\u{e4} *?[a]\\", "odd\n"],
    }
}

#[test]
fn jobs_are_listed_with_their_last_runs() {
    everywhere(|store| {
        async move {
            let locks = store.client();
            assert_eq!(jobs(&locks, "").await, [], "{}", store.name);
            let failing = locks.once_per("failing", HOUR).expect("a name");
            for code in 1..=12 {
                let turn = failing.try_begin().await.expect("an answer").expect("it failed before");
                let reason = format!("no disk {code}\nand more");
                turn.exit_code(code).fail(reason).await.expect("it is held");
            }
            let done = locks.once_per("done", HOUR).expect("a name");
            done.run(async |_| Ok::<_, String>(()))
                .await
                .expect("an answer")
                .expect("the first")
                .expect("done");
            let running = locks.once_per("running", HOUR).expect("a name");
            let running = running.try_begin().await.expect("an answer").expect("the first");
            let lost = locks.once_per("lost", HOUR).expect("a name");
            drop(lost.try_begin().await.expect("an answer").expect("the first"));
            for name in odd_names(store) {
                let odd = locks.once_per(*name, HOUR).expect("a name");
                odd.try_begin().await.expect("an answer").expect("the first").succeed().await.expect("held");
            }

            let other = store.client();
            eventually("the dropped run is lost", async || {
                other.job("lost").await.expect("an answer").expect("it ran").last.outcome == Outcome::Lost
            })
            .await;
            let all = jobs(&other, "").await;
            let names: Vec<&str> = all.iter().map(|job| job.name.as_str()).collect();
            let mut expected = [&["done", "failing", "lost", "running"], odd_names(store)].concat();
            expected.sort_unstable();
            assert_eq!(names, expected, "{}", store.name);
            let of = |name: &str| all.iter().find(|job| job.name.as_str() == name).expect("it is listed");

            let job = of("failing");
            let codes: Vec<_> = job.runs.iter().map(|run| run.code.expect("a code")).collect();
            assert_eq!(codes, [12, 11, 10, 9, 8, 7, 6, 5, 4, 3], "{}", store.name);
            assert_eq!(job.last.outcome, Outcome::Failed("no disk 12\nand more".to_owned()));
            for (run, code) in job.runs.iter().zip(codes).skip(1) {
                assert_eq!(run.outcome, Outcome::Failed(format!("no disk {code}")));
                assert!(run.ended >= Some(run.begun) && run.host == job.last.owner.host());
            }
            assert!(job.runs.windows(2).all(|two| two[0].begun >= two[1].begun));
            assert!(job.next <= SystemTime::now() + Duration::from_secs(60), "its window is open");
            let job = of("done");
            assert_eq!((&job.last.outcome, job.runs.len()), (&Outcome::Done, 1));
            assert_eq!((job.next, job.overdue), (job.last.window.end, None));
            let job = of("running");
            assert!(job.is_running() && job.last.remaining.is_some() && job.last.ended.is_none());
            assert_eq!(job.last.fence, running.fence());
            assert_eq!(of("lost").last.outcome, Outcome::Lost);

            let done = jobs(&other, "do").await;
            assert!(matches!(&done[..], [job] if job.name.as_str() == "done"));
            let prefixed = other.with(|options| options.prefix("do")).expect("a prefix");
            let stripped = jobs(&prefixed, "").await;
            assert!(matches!(&stripped[..], [job] if job.name.as_str() == "ne"), "{stripped:?}");
            assert_eq!(other.job("none").await.expect("an answer"), None);
            running.succeed().await.expect("it is held");
        }
        .boxed()
    });
}

#[test]
fn a_job_is_overdue_once_its_next_window_has_begun() {
    everywhere(|store| {
        async move {
            let locks = store.client();
            let job = locks.once_per("due", ms(300)).expect("a name");
            job.run(async |_| Ok::<_, String>(())).await.expect("an answer");
            let listed = async || jobs(&locks, "").await.pop().expect("it ran");
            eventually("it is overdue", async || listed().await.overdue.is_some()).await;
            let overdue = locks.job("due").await.expect("an answer").expect("it ran");
            assert!(overdue.overdue.is_some() && overdue.next == overdue.last.window.end, "{overdue:?}");
            // Until it begins in the next window.
            eventually("it runs again", async || {
                job.run(async |_| Ok::<_, String>(())).await.expect("an answer").is_some()
            })
            .await;
            let later = listed().await;
            assert!(later.next > overdue.next && later.runs.len() == 2, "{}: {later:?}", store.name);
        }
        .boxed()
    });
}

#[test]
fn elections_are_listed_also_without_a_leader() {
    everywhere(|store| {
        async move {
            let locks = store.client();
            let elect = |name: &str| locks.election(name, "host-1:80").expect("a name");
            let resigned = elect("resigned").campaign().await.expect("the first");
            resigned.resign().await.expect("it led");
            let term = elect("led").campaign().await.expect("the first");
            let other = store.client();
            let candidate = other.election("led", "host-2:80").expect("a name");
            let waits = tokio::spawn(async move { candidate.campaign().await });
            eventually("a candidate waits", async || {
                elections(&locks, "led").await.iter().any(|election| election.candidates.len() == 1)
            })
            .await;
            let all = elections(&locks, "").await;
            let [led, resigned] = &all[..] else { panic!("{}: {all:?}", store.name) };
            assert_eq!((led.name.as_str(), resigned.name.as_str()), ("led", "resigned"));
            let leader = led.leader.as_ref().expect("one leads");
            assert_eq!((leader.payload.as_str(), leader.fence), ("host-1:80", term.fence()));
            assert_eq!(led.hold.as_ref().and_then(|hold| hold.owner.clone()), Some(leader.owner.clone()));
            assert_eq!((&resigned.leader, resigned.candidates.len()), (&None, 0));
            waits.abort();
            term.resign().await.expect("it led");
        }
        .boxed()
    });
}

/// One scan of the keys, a few hundred at a time, and one read for each part; not one for each job.
#[test]
fn a_thousand_jobs_cost_few_requests() {
    let server = Server::start();
    let locks = Locks::open(&server.url()).expect("a URL");
    let owner = tenure::Owner::new("").expect("an owner");
    for number in 0..1_000 {
        let record = format!("7 1 done 1 2 3 1 {owner}\n\nearlier 0 - \nsucceeded 0");
        server.command(&["SET", &format!("tenure:rec:once:{{job{number}}}"), &record]);
    }
    on(async {
        locks.ping().await.expect("it answers");
        server.command(&["CONFIG", "RESETSTAT"]);
        assert_eq!(jobs(&locks, "").await.len(), 1_000);
        let stats = server.command(&["INFO", "commandstats"]);
        let calls = |line: &str| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
        let sent: u64 = stats.text().lines().filter_map(calls).sum();
        assert!(sent <= 50, "{}", stats.text());
    });
}
