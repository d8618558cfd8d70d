//! Damaged files, and files of an earlier boot.

use super::*;

#[test]
fn a_damaged_record_of_any_kind_is_refused_by_name_and_never_a_second_holder() {
    for spec in
        [LockSpec::Mutex, LockSpec::Reentrant, FAIR, WRITER, LockSpec::Queue(QueueSpec::permits(5, 5))]
    {
        damaged(spec);
    }
}

fn damaged(spec: LockSpec) {
    let (dir, name) = (dir(), owner());
    let (holder, other) = (Client::of(spec, dir.path()), Client::of(spec, dir.path()));
    assert!(is_held(&holder.acquire("x", &name)));
    let file = record(dir.path());
    let text = fs::read_to_string(&file).expect("a record");
    assert!(is_held(&other.acquire("untouched", &owner())));
    let digit = text.rfind(|char: char| char.is_ascii_digit()).expect("a number");
    let other_digit = if text.as_bytes()[digit] == b'1' { "2" } else { "1" };
    let damages: [(&str, Vec<u8>, &str); 11] = [
        ("emptied", Vec::new(), "remove the file"),
        ("half-written", text.as_bytes()[..text.len() / 2].to_vec(), "remove the file"),
        ("without its last byte", text.as_bytes()[..text.len() - 1].to_vec(), "remove the file"),
        ("foreign text", b"pid 4711\n".to_vec(), "remove the file"),
        ("foreign bytes", vec![0xff; 5_000], "remove the file"),
        ("huge", vec![b'x'; 1 << 24], "remove the file"),
        ("zeroes after a power cut", vec![0; text.len()], "remove the file"),
        (
            "with another digit",
            [&text[..digit], other_digit, &text[digit + 1..]].concat().into(),
            "remove the file",
        ),
        ("with another owner", text.replacen("test@", "tess@", 1).into(), "remove the file"),
        ("of a later version", text.replace("tenure lock 4", "tenure lock 5").into(), "format 5"),
        ("of an earlier version", text.replace("tenure lock 4", "tenure lock 3").into(), "format 3"),
    ];
    for (what, bytes, advice) in damages {
        fs::write(&file, bytes).expect("written");
        for text in [
            refusal(other.try_acquire("x", &owner(), Liveness::Process, LONG_MS), &file),
            refusal(holder.try_release("x", &name), &file),
            refusal(other.inspect("x"), &file),
        ] {
            assert!(text.contains(advice), "{what}: {text}");
        }
        assert_eq!(other.list("").expect("the other locks"), ["untouched"], "{what}");
        assert!(is_busy(&holder.acquire("untouched", &owner())), "{what}");
    }
    fs::write(&file, &text).expect("written");
    assert!(is_busy(&other.acquire("x", &owner())));
    assert_eq!(holder.release("x", &name), Answer::Released { left: 0 });

    for (what, make) in [
        ("directory", (|path| fs::create_dir(path)) as fn(&Path) -> std::io::Result<()>),
        ("symbolic link", |path| symlink("/etc/passwd", path)),
        ("not a complete record", |path| {
            assert!(Command::new("mkfifo").arg(path).status()?.success());
            Ok(())
        }),
    ] {
        make(&file).expect("made");
        let text = refusal(other.try_acquire("x", &owner(), Liveness::Process, LONG_MS), &file);
        assert!(text.contains(what), "{text}");
        fs::remove_file(&file).or_else(|_| fs::remove_dir(&file)).expect("removed");
    }
    assert!(is_held(&other.acquire("x", &owner())));
}

#[test]
fn a_record_under_another_locks_name_never_merges_the_two() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.acquire("y", &owner());
    let file = record(dir.path());
    client.try_acquire("x", &owner(), Liveness::Lease, LONG_MS).expect("an answer");
    let x = files(dir.path(), "lock-").into_iter().find(|path| *path != file).expect("two records");
    fs::copy(&x, &file).expect("copied");
    let text = refusal(client.inspect("y"), &file);
    assert!(text.contains("`x`"), "{text}");
}

#[test]
fn a_damaged_guard_is_refused_and_lets_nobody_in() {
    let dir = dir();
    let client = Client::new(dir.path());
    assert!(is_held(&client.acquire("x", &owner())));
    let file = dir.path().join("guard");
    let text = fs::read_to_string(&file).expect("the guard");
    for (bytes, advice) in [
        (text.as_bytes()[..20].to_vec(), "remove the file"),
        (vec![0; 80], "remove the file"),
        (b"#!/bin/sh\n".to_vec(), "remove the file"),
        (text.replace("guard 4", "guard 5").into_bytes(), "format 5"),
        (text.replace("guard 4", "guard 3").into_bytes(), "format 3"),
    ] {
        fs::write(&file, bytes).expect("written");
        let other = Client::new(dir.path());
        for text in [
            refusal(client.try_acquire("y", &owner(), Liveness::Process, LONG_MS), &file),
            refusal(other.try_acquire("x", &owner(), Liveness::Process, LONG_MS), &file),
            refusal(block_on(other.store.ready(SECOND)), &file),
        ] {
            assert!(text.contains(advice), "{text}");
        }
    }
    // The advice in the message is safe: the records stay.
    fs::remove_file(&file).expect("removed");
    assert!(is_busy(&Client::new(dir.path()).acquire("x", &owner())));
}

#[test]
fn another_kind_of_lock_is_said_and_its_record_left_alone() {
    let kinds = [
        (LockSpec::Mutex, Kind::Mutex, None),
        (LockSpec::Reentrant, Kind::Reentrant, None),
        (FAIR, Kind::Fair, Some(1)),
        (WRITER, Kind::RwLock, Some(1 << 20)),
        (TWO_OF_FIVE, Kind::Semaphore, Some(5)),
        (LockSpec::Queue(QueueSpec::permits(6, 2)), Kind::Semaphore, Some(6)),
    ];
    for (spec, kind, capacity) in kinds {
        let (dir, name) = (dir(), owner());
        let holder = Client::of(spec, dir.path());
        assert!(is_held(&holder.acquire("x", &name)));
        let text = fs::read_to_string(record(dir.path())).expect("a record");
        for (other, ..) in kinds.into_iter().filter(|(other, ..)| *other != spec) {
            let client = Client::of(other, dir.path());
            assert_eq!(client.acquire("x", &name), Answer::Mismatch { kind, capacity });
            assert_eq!(client.release("x", &name), Answer::Mismatch { kind, capacity });
        }
        assert_eq!(fs::read_to_string(record(dir.path())).expect("a record"), text);
        assert_eq!(holder.list("").expect("a list"), ["x"]);
        assert_eq!(holder.release("x", &name), Answer::Released { left: 0 });
    }
}

fn sealed(body: &str) -> String {
    format!("{body}sum {:016x}\n", siphasher::sip::SipHasher13::new().hash(body.as_bytes()))
}

/// Adds places of other owners to the only queue.
fn lengthen(dir: &Path, by: usize) {
    let record = record(dir);
    let text = fs::read_to_string(&record).expect("a record");
    let (body, _) = text.rsplit_once("sum ").expect("a last line");
    let lengths = body.lines().find(|line| line.starts_with("bytes ")).expect("the lengths");
    let (name, length) = lengths.rsplit_once(' ').expect("two lengths");
    let last = body.trim_end().lines().last().expect("a place");
    let words: Vec<_> = last.split(' ').collect();
    let (ticket, random): (u64, _) = (words[0].parse().expect("a number"), words[3].len() - 8);
    let mut places = String::new();
    for n in 1..=by {
        let owner = &words[3][..random];
        places += &format!("{} {} {} {owner}{n:08x}\n", ticket + n as u64, words[1], words[2]);
    }
    let length = length.parse::<usize>().expect("a number") + places.len();
    let body = body.replace(lengths, &format!("{name} {length}"));
    let end = body.trim_end().len() + 1;
    fs::write(record, sealed(&[&body[..end], &places, &body[end..]].concat())).expect("written");
}

#[test]
fn a_queue_of_ten_thousand_is_kept_and_a_full_one_lets_nobody_more_in() {
    let (dir, names) = (dir(), [owner(), owner(), owner(), owner()]);
    let client = Client::of(FAIR, dir.path());
    client.join("x", &names[0]);
    client.join("x", &names[1]);
    lengthen(dir.path(), 10_000);
    let begin = Instant::now();
    client.join("x", &names[2]);
    let took = begin.elapsed();
    let found = found(client.inspect("x"));
    assert_eq!(found.waiters.len() as u64 + found.unlisted, 10_002);
    println!("a place behind ten thousand: {took:?}, and a look at them: {:?}", begin.elapsed());
    lengthen(dir.path(), 50_000);
    let (fence, wait_ms, bind) = (Fence::Assign, Some(LONG_MS), Liveness::Process);
    let late = Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence, wait_ms, listens: None, bind };
    let text = refusal(client.ask("x", &names[3], late, 5 * SECOND), &record(dir.path()));
    assert!(text.contains("full"), "{text}");
    assert!(is_held(&client.renew("x", &names[0], None, LONG_MS + 1)));
    assert_eq!(client.release("x", &names[1]), Answer::Released { left: 0 });
    assert_eq!(client.release("x", &names[0]), Answer::Released { left: 0 });
}

#[test]
fn a_reboot_frees_everything_even_what_cannot_be_read() {
    let dir = dir();
    let client = Client::new(dir.path());
    let Answer::Held { fence } =
        client.try_acquire("x", &owner(), Liveness::Process, LONG_MS).expect("an answer")
    else {
        panic!("not held")
    };
    client.try_acquire("y", &owner(), Liveness::Lease, LONG_MS).expect("an answer");
    drop(client);
    eventually("its process is gone", || {
        files(dir.path(), "holder-")
            .iter()
            .all(|path| fs::File::open(path).is_ok_and(|file| file.try_lock().is_ok()))
    });
    let boot = "00000000-0000-0000-0000-000000000000";
    for file in [files(dir.path(), "lock-"), files(dir.path(), "guard")].concat() {
        let text = fs::read_to_string(&file).expect("a file");
        let old = text.lines().find_map(|line| line.strip_prefix("boot ")).expect("a boot id");
        fs::write(&file, text.replace(old, boot)).expect("written");
    }
    fs::write(dir.path().join("lock-00000000000000000000000000000000"), "").expect("written");
    let client = Client::new(dir.path());
    assert_eq!(client.list("").expect("a list"), Vec::<String>::new());
    match client.acquire("x", &owner()) {
        Answer::Held { fence: next } => assert!(next > fence),
        other => panic!("{other:?}"),
    }
    assert!(is_held(&client.acquire("y", &owner())));
}

#[test]
fn another_boot_id_while_a_holder_lives_is_no_reboot() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &name);
    let file = dir.path().join("guard");
    let text = fs::read_to_string(&file).expect("the guard");
    let old = text.lines().find_map(|line| line.strip_prefix("boot ")).expect("a boot id");
    fs::write(&file, text.replace(old, "00000000-0000-0000-0000-000000000000")).expect("written");
    let other = Client::new(dir.path());
    let said = refusal(other.try_acquire("x", &owner(), Liveness::Process, LONG_MS), dir.path());
    assert!(said.contains("boot id"), "{said}");
    fs::write(&file, text).expect("written");
    assert!(is_busy(&other.acquire("x", &owner())));
}
