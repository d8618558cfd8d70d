//! Names, and the order within a client.

use std::time::Duration;

use futures_util::future::join_all;
use tenure::{LockName, Options};

use super::Fixture;

/// Between clients no order is promised.
pub async fn waiters_of_one_client_are_served_in_the_order_in_which_they_came(fixture: &Fixture) {
    let locks = fixture.client();
    let guard = locks.mutex("x").expect("a name").lock().await.expect("a free lock");
    let served = std::sync::Mutex::new(Vec::new());
    let (served, locks) = (&served, &locks);
    let waiters = (0..5).map(|number| async move {
        fixture.sleep(Duration::from_millis(10 * number)).await;
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a grant");
        served.lock().expect("no panic").push(number);
        guard.release().await.expect("a release");
    });
    let release = async {
        fixture.sleep(Duration::from_millis(150)).await;
        guard.release().await.expect("a release");
    };
    futures_util::future::join(join_all(waiters), release).await;
    assert_eq!(*served.lock().expect("no panic"), [0, 1, 2, 3, 4]);
}

/// Long names that differ in the last byte, and characters that break file systems or protocols.
pub async fn names_differ_in_every_byte_and_may_hold_anything(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let long = "n".repeat(LockName::MAX_BYTES - 1);
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "a/b",
        "a/../b",
        "..",
        "a\0",
        "a\0b",
        "a\r\nb",
        "ä",
        "✓ 🔒",
        "a}b",
        "{a}",
        "{}a",
        "%s",
        "*",
        "?",
        &format!("{long}1"),
        &format!("{long}2"),
        &long,
    ];
    let mut guards = Vec::new();
    for name in names {
        if fixture.refuses(name) {
            let error = ours.mutex(name).expect_err("a name that is refused");
            assert!(error.is_unsupported() && error.to_string().contains("hash tag"), "{error}");
            continue;
        }
        let mutex = ours.mutex(name).expect("a name");
        guards.push(
            mutex
                .try_lock()
                .await
                .expect("an answer")
                .unwrap_or_else(|| panic!("two names are one: {name:.40}")),
        );
        assert!(theirs.mutex(name).expect("a name").try_lock().await.expect("an answer").is_none());
        assert_eq!(theirs.inspect(name).await.expect("an answer").expect("a holder").name.as_str(), name);
    }
    for name in ["", "tenure:x", &"n".repeat(LockName::MAX_BYTES + 1)] {
        assert!(ours.mutex(name).expect_err("no name").is_invalid());
    }
}

/// The key is the prefix followed by the name, nothing more.
pub async fn prefixes_keep_names_apart(fixture: &Fixture) {
    let a = fixture.client_with(fixture.options().prefix("a:"));
    let b = fixture.client_with(fixture.options().prefix("b:"));
    let plain = fixture.client_with(Options::new());
    let guard = a.mutex("x").expect("a name").try_lock().await.expect("an answer").expect("a free lock");
    assert_eq!(guard.name().as_str(), "x");
    assert!(b.mutex("x").expect("a name").try_lock().await.expect("an answer").is_some());
    assert!(plain.mutex("a:x").expect("a name").try_lock().await.expect("an answer").is_none());
}
