//! Directories that cannot be used or were replaced.

use super::*;

#[test]
fn a_missing_directory_is_created_for_its_user_alone() {
    let dir = dir();
    let path = dir.path().join("a/b/c");
    let client = Client::new(&path);
    assert!(!path.exists(), "no I/O before the first use");
    let looks = Locks::open(&format!("file://{}", path.display())).expect("a store");
    assert!(block_on(looks.inspect("x")).expect("an answer").is_none());
    assert!(block_on(looks.list("").expect("a prefix").next()).expect("an answer").is_none());
    assert!(!path.exists(), "a look makes no directory");
    block_on(client.store.ready(SECOND)).expect("a store");
    assert_eq!(fs::metadata(&path).expect("a directory").permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(dir.path().join("a")).expect("a directory").permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_file_in_the_place_of_the_directory_or_its_guard_is_said() {
    let dir = dir();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    for path in [file.clone(), file.join("below")] {
        let text = refusal(block_on(Client::new(&path).store.ready(SECOND)), &path);
        assert!(text.contains("a file is in the way"), "{text}");
    }
    let below = dir.path().join("below");
    fs::create_dir_all(below.join("guard")).expect("a directory");
    let text = refusal(block_on(Client::new(&below).store.ready(SECOND)), &below.join("guard"));
    assert!(text.contains("it is a directory"), "{text}");
}

#[test]
fn a_directory_that_its_user_may_not_use_is_said() {
    let dir = dir();
    // Below a directory that everybody may traverse.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let theirs = dir.path().join("theirs");
    block_on(Client::new(&theirs).store.ready(SECOND)).expect("a store");
    for (mode, of_guard) in [(0o700, 0o600), (0o755, 0o644), (0o777, 0o644), (0o555, 0o666)] {
        fs::set_permissions(&theirs, fs::Permissions::from_mode(mode)).expect("set");
        fs::set_permissions(theirs.join("guard"), fs::Permissions::from_mode(of_guard)).expect("set");
        let said = Process::start_under(&nobody, "try", &theirs).line();
        let path = theirs.display().to_string();
        assert!(said.contains("permission denied") && said.contains(&path), "{mode:o}: {said}");
    }
    let said = Process::start_under(&nobody, "try", &dir.path().join("new")).line();
    assert!(said.contains("permission denied"), "{said}");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).expect("set");
    fs::set_permissions(theirs.join("guard"), fs::Permissions::from_mode(0o666)).expect("set");
    let said = Process::start_under(&nobody, "try", &theirs).line();
    assert!(said.contains("Held"), "{said}");
}

/// A separate file system. Mounting needs root; without, the test fails and says so.
struct Mount(TempDir);

impl Mount {
    fn new(options: &str) -> Self {
        let dir = dir();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tenure-test"]).arg(dir.path());
        assert!(
            mount.status().expect("mount").success(),
            "mounting a tmpfs takes root: run the tests as root"
        );
        Self(dir)
    }

    fn remount(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{options}")]).arg(self.0.path());
        assert!(mount.status().expect("mount").success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_refuses_a_grant_and_lets_a_release_through() {
    let mount = Mount::new("size=64k");
    let dir = mount.0.path();
    let (client, name) = (Client::new(dir), owner());
    assert!(is_held(&client.acquire("x", &name)));
    let ballast = dir.join("ballast");
    let mut file = fs::File::create(&ballast).expect("a file");
    while file.write_all(&[0; 1024]).is_ok() {}
    let other = Client::new(dir);
    for text in [
        refusal(other.try_acquire("y", &owner(), Liveness::Process, LONG_MS), dir),
        refusal(block_on(other.store.ready(SECOND)), dir),
    ] {
        assert!(text.contains("full"), "{text}");
    }
    assert_eq!(other.inspect("y").expect("an answer"), Answer::Free);
    assert!(is_busy(&other.acquire("x", &owner())));
    assert_eq!(client.list("").expect("a list"), ["x"]);
    assert_eq!(client.release("x", &name), Answer::Released { left: 0 });
    fs::remove_file(&ballast).expect("removed");
    assert!(is_held(&other.acquire("y", &owner())));
}

/// A queue of many pages is not overwritten on a full disk, where a killed process would leave half of it.
#[test]
fn on_a_full_file_system_a_long_queue_is_renewed_and_moves_on() {
    let mount = Mount::new("size=256k");
    let dir = mount.0.path();
    let (mutex, queue, first) = (Client::new(dir), Client::of(FAIR, dir), owner());
    assert!(is_held(&queue.join("q", &first)));
    let waiters: Vec<Owner> = (0..100).map(|_| owner()).collect();
    waiters.iter().for_each(|owner| drop(queue.join("q", owner)));
    // Another record takes the temp file.
    let name = owner();
    assert!(is_held(&mutex.acquire("x", &name)));
    let mut file = fs::File::create(dir.join("ballast")).expect("a file");
    while file.write_all(&[0; 1024]).is_ok() {}
    let inode = || {
        let all = files(dir, "lock-").into_iter().map(|file| fs::metadata(file).expect("a record"));
        all.max_by_key(fs::Metadata::len).expect("the queue").ino()
    };
    assert!(is_held(&mutex.renew("x", &name, None, LONG_MS + 1)));
    assert!(is_held(&queue.renew("q", &first, None, LONG_MS + 1)));
    assert_eq!(queue.release("q", &first), Answer::Released { left: 0 });
    for waiter in &waiters[..60] {
        let before = inode();
        assert!(is_held(&queue.renew("q", waiter, None, LONG_MS)), "first come, first served");
        assert!(inode() != before, "overwritten");
        assert_eq!(queue.release("q", waiter), Answer::Released { left: 0 });
    }
    assert_eq!(found(queue.inspect("q")).waiters.len(), 39);
}

/// A record is as long as its lock's name at least.
#[test]
fn on_a_full_file_system_a_lock_with_a_long_name_is_not_overwritten() {
    let mount = Mount::new("size=256k");
    let dir = mount.0.path();
    let (client, holder, name) = (Client::new(dir), owner(), "n".repeat(9_000));
    assert!(is_held(&client.acquire(&name, &holder)));
    let mut file = fs::File::create(dir.join("ballast")).expect("a file");
    while file.write_all(&[0; 1024]).is_ok() {}
    let inode = || fs::metadata(&files(dir, "lock-")[0]).expect("a record").ino();
    // Each to a later end, also within a millisecond.
    for more in 1..4 {
        let before = inode();
        assert!(is_held(&client.renew(&name, &holder, None, LONG_MS + more)));
        assert!(inode() != before, "overwritten");
    }
    assert_eq!(client.release(&name, &holder), Answer::Released { left: 0 });
    assert_eq!(files(dir, "spare-"), Vec::<PathBuf>::new());
}

/// Also the first time, when no space is reserved.
#[test]
fn on_a_full_file_system_what_is_held_is_renewed_and_who_waits_keeps_its_place() {
    let mount = Mount::new("size=64k");
    let dir = mount.0.path();
    let (client, name) = (Client::new(dir), owner());
    let (queue, first, second) = (Client::of(FAIR, dir), owner(), owner());
    assert!(is_held(&client.acquire("x", &name)));
    assert!(is_held(&queue.join("q", &first)));
    let place = ticket(&queue.join("q", &second));
    let _ = fs::remove_file(dir.join("temp"));
    let mut file = fs::File::create(dir.join("ballast")).expect("a file");
    while file.write_all(&[0; 1024]).is_ok() {}
    assert!(is_held(&client.renew("x", &name, None, LONG_MS + 1)));
    assert!(is_held(&queue.renew("q", &first, None, LONG_MS + 1)));
    let verb = Verb::Refresh { owners: Arc::new([second.clone()]), wait_ms: LONG_MS + 1, listens: None };
    let places = queue.ask("q", &second, verb, 5 * SECOND).expect("an answer");
    let waits = [Place::Waiting { ticket: place }];
    assert!(matches!(&places, Answer::Places { places, .. } if *places == waits), "{places:?}");
    assert_eq!(queue.release("q", &first), Answer::Released { left: 0 });
    assert_eq!(found(queue.inspect("q")).holders.len(), 1);
    assert_eq!(client.release("x", &name), Answer::Released { left: 0 });
}

#[test]
fn a_read_only_file_system_is_said() {
    let mount = Mount::new("size=64k");
    let dir = mount.0.path();
    Client::new(dir).inspect("x").expect("an answer");
    // A store that is closing writes nothing more, but may still have its files open.
    sleep(Duration::from_millis(100));
    mount.remount("ro");
    let text = refusal(block_on(Client::new(dir).store.ready(SECOND)), dir);
    assert!(text.contains("read-only"), "{text}");
    let below = dir.join("below");
    let text = refusal(block_on(Client::new(&below).store.ready(SECOND)), &below);
    assert!(text.contains("read-only"), "{text}");
}

#[test]
fn a_directory_that_is_replaced_is_noticed_by_who_listens_and_by_who_holds() {
    let dir = dir();
    let path = dir.path().join("locks");
    let (client, name) = (Client::new(&path), owner());
    assert!(is_held(&client.acquire("x", &name)));
    let mut listener = client.listen("y");
    let interrupted = client.store.signals().interrupted();
    fs::rename(&path, dir.path().join("aside")).expect("moved");
    assert_eq!(client.within(SECOND, listener.next()), Some(Some(Notification::Reconnected)));
    assert!(client.within(SECOND, interrupted).is_some());
    let other = Client::new(&path);
    assert!(is_held(&other.acquire("x", &owner())));
    assert!(is_busy(&client.renew("x", &name, None, LONG_MS)), "both would hold");
}

#[test]
fn a_directory_that_is_replaced_while_a_stopped_process_has_its_guard_is_left() {
    let dir = dir();
    let path = dir.path().join("locks");
    let (client, name) = (Client::new(&path), owner());
    assert!(is_held(&client.acquire("x", &name)));
    let guard = fs::File::open(path.join("guard")).expect("the guard");
    guard.lock().expect("a lock");
    fs::rename(&path, dir.path().join("aside")).expect("moved");
    assert!(is_held(&client.acquire("y", &owner())));
    assert!(is_busy(&Client::new(&path).acquire("y", &owner())));
    drop(guard);
}

#[test]
fn a_directory_that_was_removed_is_made_anew_and_nobody_holds_there() {
    let dir = dir();
    let path = dir.path().join("locks");
    let (client, name) = (Client::new(&path), owner());
    assert!(is_held(&client.acquire("x", &name)));
    let interrupted = client.store.signals().interrupted();
    fs::remove_dir_all(&path).expect("removed");
    assert_eq!(client.renew("x", &name, None, LONG_MS), Answer::Free);
    assert!(client.within(SECOND, interrupted).is_some());
    assert!(is_held(&client.acquire("x", &owner())));
    assert!(is_busy(&Client::new(&path).acquire("x", &owner())));
}

/// Clients on threads of their own send the next request after each answer, and the store's thread has more
/// to do than that.
#[test]
fn however_much_is_asked_what_is_held_is_renewed_and_limits_are_kept() {
    // A busy machine schedules it in each third of this.
    const TTL: Duration = Duration::from_secs(5);
    let dir = dir();
    let locks = Locks::open(&format!("file:{}", dir.path().display())).expect("a store");
    let locks = locks.with(|options| options.ttl(TTL)).expect("options");
    let guard = block_on(locks.mutex("leader").expect("a name").lock()).expect("a free lock");
    let until = Instant::now() + 2 * TTL;
    std::thread::scope(|scope| {
        for number in 0..16 {
            let locks = &locks;
            scope.spawn(move || {
                let mutex = locks.mutex(format!("busy:{number}")).expect("a name");
                while Instant::now() < until {
                    let turn = block_on(mutex.try_lock()).expect("an answer").expect("a free lock");
                    block_on(turn.release()).expect("a release");
                }
            });
        }
        let waiter = locks.mutex("leader").expect("a name");
        while Instant::now() < until {
            let begun = Instant::now();
            assert!(block_on(waiter.try_lock_for(SECOND / 3)).expect("an answer").is_none());
            assert!(begun.elapsed() < 3 * SECOND, "a limit of {:?} took {:?}", SECOND / 3, begun.elapsed());
            assert!(guard.is_held(), "its renewals had no turn");
        }
    });
    block_on(guard.release()).expect("still held");
}
