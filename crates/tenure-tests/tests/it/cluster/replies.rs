//! Replies that a cluster node may send: redirections, and malformed slot tables.

use super::*;

/// A fake node of a cluster. `health` is its `cluster_state`, `slots` its reply to CLUSTER SLOTS,
/// and `answer` its reply to each script.
fn fake_node(health: &str, slots: &'static str, answer: &'static str) -> FakeRedis {
    let health = format!("cluster_state:{health}\r\n");
    let health = format!("${}\r\n{health}\r\n", health.len());
    FakeRedis::start(move |words| match words {
        ["CLUSTER", "INFO"] => Some(health.clone()),
        ["CLUSTER", "SLOTS"] => Some(slots.to_owned()),
        ["EVAL" | "EVALSHA", ..] => Some(answer.to_owned()),
        _ => None,
    })
}

fn locks_on(fake: &FakeRedis) -> Locks {
    let locks = Locks::open(&format!("redis-cluster://{}", fake.address())).expect("a store");
    locks.with(|options| options.op_timeout(ms(600))).expect("options")
}

const ALL_SLOTS: &str = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:PORT\r\n";

fn try_lock(locks: &Locks) -> (tenure::Error, Duration) {
    let began = Instant::now();
    let error = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("no answer");
    (error, began.elapsed())
}

#[test]
fn who_is_sent_on_and_on_gives_up_in_time_and_asks_ever_more_seldom() {
    for answer in [
        "-MOVED 16287 127.0.0.1:PORT\r\n",
        "-ASK 16287 :PORT\r\n",
        "-MOVED 16287 ?:PORT\r\n",
        "-TRYAGAIN later\r\n",
    ] {
        let fake = fake_node("ok", ALL_SLOTS, answer);
        let (error, took) = try_lock(&locks_on(&fake));
        assert!(error.is_unreachable(), "{answer}: {error:?}");
        assert!(took < SOON, "{answer}: {took:?}");
        let (asked, looked) = (fake.asked("EVAL"), fake.asked("CLUSTER SLOTS"));
        assert!((2..40).contains(&asked) && looked < 40, "{answer}: asked {asked} times, looked {looked}");
    }
}

#[test]
fn a_name_whose_counter_cannot_be_in_its_slot_is_refused_before_anything_is_asked() {
    let nobody = locks("redis-cluster://127.0.0.1:1", ms(1_000));
    for (kind, name, is_kept) in [
        ("mutex", "a}b", false),
        ("mutex", "{}a}b", false),
        ("fair", "a}b", false),
        ("reentrant", "a{b", false),
        ("mutex", "{a}b}", true),
        ("reentrant", "{a}b", true),
        ("mutex", "a{b", true),
    ] {
        let error = match kind {
            "mutex" => nobody.mutex(name).err(),
            "fair" => nobody.fair_mutex(name).err(),
            _ => nobody.reentrant_mutex(name, &Owner::new("x").expect("an owner")).err(),
        };
        let said = error.as_ref().map(|error| (error.is_unsupported(), error.to_string()));
        let is_refused = said.is_some_and(|(is_unsupported, said)| {
            is_unsupported && said.contains(&format!("`{name}`")) && said.contains("hash tag")
        });
        assert_eq!(is_refused, !is_kept, "{kind} {name}: {error:?}");
    }
}

#[test]
fn what_is_no_table_of_slots_is_not_believed() {
    for (health, slots, why) in [
        ("ok", "*1\r\n:1\r\n", "a malformed reply to CLUSTER SLOTS"),
        ("ok", "*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n", "a malformed reply to CLUSTER SLOTS"),
        ("ok", "*0\r\n", "its cluster is down"),
        ("fail", ALL_SLOTS, "its cluster is down"),
        ("ok", "*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$0\r\n\r\n:PORT\r\n", "no node is known to serve its slot"),
        ("ok", "-NOAUTH Authentication required.\r\n", "NOAUTH"),
    ] {
        let fake = fake_node(health, slots, "-ERR not asked\r\n");
        let (error, took) = try_lock(&locks_on(&fake));
        assert!(took < SOON && format!("{error:?}").contains(why), "{slots}: {error:?}");
        assert_eq!(
            (error.is_unreachable(), error.is_refused()),
            (why != "NOAUTH", why == "NOAUTH"),
            "{error:?}"
        );
        assert_eq!(fake.asked("EVAL"), 0);
    }
}
