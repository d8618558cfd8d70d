//! A process that dies at any point at which others could see its partial changes.

use super::*;

const KINDS: [(&str, LockSpec); 5] = [
    ("mutex", LockSpec::Mutex),
    ("reentrant", LockSpec::Reentrant),
    ("fair", FAIR),
    ("writer", WRITER),
    ("permits", TWO_OF_FIVE),
];

/// Every operation that changes a file, for each kind.
pub(crate) fn live(dir: &Path) {
    let mut client = Client::new(dir);
    for (name, spec) in KINDS {
        client.spec = spec;
        let (first, second) = (owner(), owner());
        say(&format!("{name} {}", ticket(&client.acquire(name, &first))));
        assert!(is_held(&client.renew(name, &first, Some(Liveness::Work), LONG_MS + 1)));
        if spec == LockSpec::Reentrant {
            assert!(is_held(&client.enter(name, &first, 2)));
            assert_eq!(client.release(name, &first), Answer::Released { left: 1 });
            let verb = Verb::Release { hold: 2, fence: Fence::Assign, whose: ReleaseScope::Own };
            let left = client.ask(name, &first, verb, SECOND).expect("an answer");
            assert_eq!(left, Answer::Released { left: 0 });
        } else {
            if matches!(spec, LockSpec::Queue(_)) {
                ticket(&client.join(name, &second));
            }
            assert_eq!(client.release(name, &first), Answer::Released { left: 0 });
        }
        if spec == LockSpec::Mutex {
            wait_for_one_another(dir, &client, name);
        }
        if matches!(spec, LockSpec::Queue(_)) {
            say(&format!("{name} {}", ticket(&client.join(name, &second))));
            assert_eq!(client.release(name, &second), Answer::Released { left: 0 });
        }
    }
}

/// Two others wait for a mutex: one is woken and gets it, the other stops waiting.
fn wait_for_one_another(dir: &Path, client: &Client, name: &str) {
    let (first, second) = (owner(), owner());
    assert!(is_held(&client.acquire(name, &first)));
    let waiting = [(); 2].map(|()| {
        let waiting = Client::new(dir);
        let listener = waiting.listen_to_ask(name);
        assert!(is_busy(&waiting.acquire(name, &second)));
        (waiting, listener)
    });
    assert_eq!(client.release(name, &first), Answer::Released { left: 0 });
    let [(called, listener), (other, others)] = waiting;
    assert!(is_held(&called.acquire(name, &second)));
    others.rest();
    // Executed after it.
    assert!(matches!(other.inspect(name), Ok(Answer::Found(_))));
    assert_eq!(called.release(name, &second), Answer::Released { left: 0 });
    drop(listener);
}

/// A process that dies after this many crash points. Returns the highest token that it printed for each lock,
/// and whether it survived.
fn dies(after: u64, dir: &Path) -> (Vec<(String, u64)>, bool) {
    let mut process = Process::start(&format!("live: {after}"), dir);
    let said: Vec<String> = process.lines.iter().collect();
    let lived = process.child.wait().expect("a process").success();
    let lines = said.iter().filter_map(|line| line.split_once(' '));
    let tokens = lines.map(|(name, token)| (name.to_owned(), token.parse().expect("a token")));
    (tokens.collect(), lived)
}

/// A process may die at any point: everything it held is free immediately, later tokens are higher than those
/// it was given, and locks of others are unaffected.
#[test]
fn a_process_may_end_at_every_point_and_leaves_what_the_next_can_use() {
    for others in [false, true] {
        let mut points = 0;
        loop {
            let dir = dir();
            let mut client = Client::new(dir.path());
            let (other, next) = (owner(), owner());
            if others {
                assert!(is_held(&client.acquire("other", &other)));
                client.spec = TWO_OF_FIVE;
                assert!(is_held(&client.acquire("permits", &other)));
            }
            let (tokens, lived) = dies(points, dir.path());
            let known = client.list("").expect("what can be read");
            assert!(known.len() <= 2, "{points}: what a dead process had is listed: {known:?}");
            for (name, spec) in KINDS {
                client.spec = spec;
                let answer = client.acquire(name, &next);
                assert!(is_held(&answer), "{name} after {points} points: {answer:?}");
                let given = tokens.iter().filter(|(of, _)| of == name).map(|(_, token)| *token).max();
                assert!(
                    Some(ticket(&answer)) > given,
                    "{name} after {points} points: {answer:?} after {given:?}"
                );
                assert_eq!(client.release(name, &next), Answer::Released { left: 0 });
            }
            if others {
                client.spec = LockSpec::Mutex;
                assert!(is_held(&client.renew("other", &other, None, LONG_MS)));
                assert_eq!(client.release("other", &other), Answer::Released { left: 0 });
                client.spec = TWO_OF_FIVE;
                assert_eq!(client.release("permits", &other), Answer::Released { left: 0 });
            }
            assert_eq!(client.list("").expect("an answer"), Vec::<String>::new());
            if lived {
                break;
            }
            points += 1;
        }
        println!("{points} points");
        assert!(points > 100, "only {points} points: this showed little");
    }
}
