//! Stop requests to holders.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use tokio::time::timeout;

use super::everywhere;

#[test]
fn a_request_to_stop_reaches_each_holder_that_it_names_and_no_later_one() {
    everywhere(|store| {
        async move {
            let (ours, theirs) = (store.client(), store.client_with(|options| options.label("the other")));
            assert!(theirs.request_stop("x", "").await.expect("an answer").is_none(), "{}", store.name);
            let semaphore = ours.semaphore("x", 3).expect("a name");
            let acquire = async || semaphore.acquire().await.expect("a permit");
            let (first, second) = (acquire().await, acquire().await);
            let asked =
                theirs.request_stop("x", "deploy at 9").await.expect("an answer").expect("it is held");
            assert_eq!(asked.holders.len(), 2, "{}", store.name);
            let later = acquire().await;
            let asked = join(ours.stop_requested(&first), ours.stop_requested(&second));
            // Both poll every 2 s, and so does the later one.
            let later = timeout(Duration::from_millis(2_900), ours.stop_requested(&later));
            let ((first, second), later) = join(asked, later).await;
            for request in [first, second] {
                let request = request.expect("a request");
                assert_eq!((&*request.by.label(), &*request.reason), ("the other", "deploy at 9"));
            }
            assert!(later.is_err(), "{}: {later:?}", store.name);
        }
        .boxed()
    });
}
