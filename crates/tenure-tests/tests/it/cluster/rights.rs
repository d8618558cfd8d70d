//! The rights needed on a cluster.

use super::*;

/// The rights in these lines of the page, which are keyed by their first word.
fn rights(lines: &[&str]) -> Vec<&'static str> {
    let page = include_str!("../../../../../book/operate/rights.md");
    let (_, page) = page.split_once("```acl\n").expect("a list of rights");
    let (page, _) = page.split_once("```").expect("its end");
    let mut rights: Vec<_> = page
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(what, _)| lines.contains(what))
        .flat_map(|(_, rights)| rights.split_whitespace())
        .collect();
    rights.sort_unstable();
    rights.dedup();
    rights
}

/// Gives the user `app` these rights only, and clears the log of denials.
fn allow(cluster: &Cluster, rights: &[&str]) {
    let set = ["ACL", "SETUSER", "app", "reset", "on", ">pw", "resetkeys", "resetchannels", "-@all"];
    for node in cluster.nodes() {
        assert!(node.command(&[&set[..], rights].concat()) == "OK", "{rights:?}");
        assert!(node.command(&["ACL", "LOG", "RESET"]) == "OK");
    }
}

/// Denials on any node.
fn denied(cluster: &Cluster) -> Vec<String> {
    let logs: Vec<_> = cluster.nodes().iter().map(|node| node.command(&["ACL", "LOG"])).collect();
    let entries = logs.iter().flat_map(|log| log.items());
    let objects = entries.filter_map(|entry| {
        let mut pairs = entry.items().chunks_exact(2);
        pairs.find(|pair| pair[0].text() == "object").map(|pair| pair[1].text().to_owned())
    });
    objects.collect()
}

/// Holds and awaits a lock, migrates its slot and releases the lock meanwhile; then again without a
/// migration.
fn hand_over_while_it_moves(cluster: &Cluster, name: &str) -> tenure::Result<()> {
    let url = cluster.url().replace("://", "://app:pw@");
    let (from, to) = if cluster.owner_of(name) == 0 { (0, 1) } else { (1, 0) };
    let slot = cluster.slot(name);
    let [holders, waiters] = [(); 2].map(|()| locks(&url, Duration::from_secs(10)));
    let guard = acquire(&holders, "mutex", name)?;
    scope(|scope| {
        let waiter = scope.spawn(|| acquire(&waiters, "mutex", name));
        sleep(ms(100)); // until it has sent its request
        cluster.begin_move(slot, from, to);
        while cluster.move_keys(slot, from, to, 100) > 0 {}
        let released = block_on(guard.release());
        cluster.end_move(slot, from, to);
        if released.is_err() {
            for node in cluster.nodes() {
                node.command(&["DEL", name]);
            }
        }
        let waited = waiter.join().expect("no panic");
        released?;
        block_on(waited?.release())
    })?;
    let guard = acquire(&holders, "mutex", name)?;
    scope(|scope| {
        let waiter = scope.spawn(|| acquire(&waiters, "mutex", name));
        sleep(ms(100));
        block_on(guard.release())?;
        block_on(waiter.join().expect("no panic")?.release())
    })?;
    Ok(())
}

#[test]
fn the_rights_that_a_cluster_asks_for_are_enough_and_each_is_needed() {
    let cluster = Cluster::without_replicas();
    let name = cluster.key_at(0, "app:");
    let all = rights(&["always", "fast", "mutex", "wake", "old", "quorum", "cluster"]);
    allow(&cluster, &all);
    hand_over_while_it_moves(&cluster, &name).expect("with all rights");
    assert_eq!(denied(&cluster), Vec::<String>::new());
    // Unsubscribing happens ten seconds later, and only if others wait meanwhile.
    for right in rights(&["cluster"]).into_iter().filter(|right| *right != "+sunsubscribe") {
        let less: Vec<_> = all.iter().copied().filter(|other| *other != right).collect();
        allow(&cluster, &less);
        // Only some calls fail, but the server logs every denial.
        let _ = hand_over_while_it_moves(&cluster, &name);
        let begin = right[1..].trim_end_matches('*');
        let is_missed = denied(&cluster).iter().any(|denied| denied.starts_with(begin));
        assert!(is_missed, "{right}: {:?}", denied(&cluster));
    }
}
