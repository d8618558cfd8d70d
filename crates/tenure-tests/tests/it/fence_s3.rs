//! The recipe of `book/use/fencing.md` for conditional writes, on a fake of S3.
#![expect(clippy::disallowed_methods, reason = "the fake and the racing writers are threads")]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use tenure::{Locks, block_on};

/// The state of the object store.
#[derive(Default)]
struct Objects {
    /// Content, by path.
    kept: BTreeMap<String, String>,
    /// All content that was written, in order.
    written: Vec<String>,
    /// Number of writes still to be refused with 409, as S3 does for concurrent writes.
    conflicts: u32,
}

/// S3's ETag is a hash of the content, so equal content has equal ETags.
fn etag(bytes: &str) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

impl Objects {
    /// The status, the ETag and the content.
    fn answer(&mut self, request: &Request) -> (u16, String, String) {
        let now = self.kept.get(&request.path);
        let header = |name: &str| request.headers.get(name).map(String::as_str);
        let status = match (request.method.as_str(), now) {
            ("GET", Some(bytes)) => return (200, etag(bytes), bytes.clone()),
            ("GET", None) => 404,
            ("PUT", _) if self.conflicts > 0 => {
                self.conflicts -= 1;
                409
            }
            ("PUT", now) => match (header("if-match"), header("if-none-match"), now) {
                (Some(_), _, None) => 404,
                (Some(is), _, Some(bytes)) if is != etag(bytes) => 412,
                (_, Some("*"), Some(_)) => 412,
                _ => 200,
            },
            _ => 405,
        };
        if status == 200 {
            self.kept.insert(request.path.clone(), request.body.clone());
            self.written.push(request.body.clone());
        }
        (status, String::new(), String::new())
    }
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

/// The first line, the headers and the body of a message.
fn read_message(stream: &TcpStream) -> Option<(String, BTreeMap<String, String>, String)> {
    let mut lines = BufReader::new(stream);
    let mut next = || {
        let mut line = String::new();
        lines.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = next()?;
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = next()?.split_once(':') {
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    lines.read_exact(&mut body).ok()?;
    Some((first, headers, String::from_utf8(body).ok()?))
}

/// A fake of S3 with conditional writes, behind HTTP.
struct Bucket {
    objects: Arc<Mutex<Objects>>,
    at: SocketAddr,
}

impl Bucket {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let objects = Arc::new(Mutex::new(Objects::default()));
        let kept = Arc::clone(&objects);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                // The client closed the connection.
                let Some((first, headers, body)) = read_message(&stream) else { return };
                let mut words = first.split(' ').map(str::to_owned);
                let (method, path) = words.next().zip(words.next()).expect("a method and a path");
                let request = Request { method, path, headers, body };
                let (status, etag, bytes) = kept.lock().expect("no panic").answer(&request);
                let length = bytes.len();
                // Fails if the client is gone.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} \r\nETag: {etag}\r\nContent-Length: {length}\r\n\r\n{bytes}"
                );
            }
        });
        Self { objects, at }
    }

    fn ask(&self, method: &str, condition: &str, body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.at).expect("the fake listens");
        let length = body.len();
        write!(stream, "{method} /draw HTTP/1.1\r\n{condition}Content-Length: {length}\r\n\r\n{body}")
            .expect("it reads");
        let (first, headers, bytes) = read_message(&stream).expect("a reply");
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), headers["etag"].clone(), bytes)
    }

    /// Steps 1 and 2: the condition of the write, unless the object has a newer token.
    fn begin(&self, token: u64) -> Option<String> {
        match self.ask("GET", "", "") {
            (200, etag, bytes) => {
                let newest: u64 = bytes.split(' ').next()?.parse().expect("a token in the bytes");
                (newest <= token).then(|| format!("If-Match: {etag}\r\n"))
            }
            (404, ..) => Some("If-None-Match: *\r\n".to_owned()),
            other => panic!("{other:?}"),
        }
    }

    /// Step 3: whether the write succeeded.
    fn put(&self, condition: &str, token: u64, value: &str) -> bool {
        match self.ask("PUT", condition, &format!("{token} {value}")).0 {
            200 => true,
            409 | 412 => false,
            other => panic!("{other}"),
        }
    }

    /// The whole recipe; `false` if there is a newer token.
    fn write(&self, token: u64, value: &str) -> bool {
        while let Some(condition) = self.begin(token) {
            if self.put(&condition, token, value) {
                return true;
            }
        }
        false
    }

    fn bytes(&self) -> String {
        self.ask("GET", "", "").2
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        drop(TcpStream::connect(self.at));
    }
}

/// The tokens of two holders of a lock, one after the other.
fn tokens() -> [u64; 2] {
    let mutex = Locks::memory().mutex("draw").expect("a name");
    [(); 2].map(|()| {
        let guard = block_on(mutex.lock()).expect("a grant");
        let token = guard.fence();
        block_on(guard.release()).expect("it holds");
        token
    })
}

#[test]
fn a_late_holders_object_is_refused() {
    let (bucket, [late, newer]) = (Bucket::start(), tokens());
    assert!(bucket.write(late, "early") && bucket.write(late, "again"), "one holder writes many times");
    assert!(bucket.write(newer, "next"));
    assert!(!bucket.write(late, "late"));
    assert_eq!(bucket.bytes(), format!("{newer} next"));
    // The recipe refuses it, not the fake: without its condition the write succeeds.
    assert!(bucket.put("", late, "late") && bucket.bytes() == format!("{late} late"));
}

#[test]
fn a_late_holder_that_has_read_before_is_refused() {
    let [late, newer] = tokens();
    for is_new in [true, false] {
        let bucket = Bucket::start();
        assert!(is_new || bucket.write(late, "same"));
        let condition = bucket.begin(late).expect("it is the newest yet");
        // With the same value, the content differs only by the token.
        assert!(bucket.write(newer, "same"));
        assert!(!bucket.put(&condition, late, "late") && !bucket.write(late, "late"));
        assert_eq!(bucket.bytes(), format!("{newer} same"));
    }
}

/// Why the token must be part of the content.
#[test]
fn a_write_of_equal_bytes_goes_unseen() {
    let bucket = Bucket::start();
    assert_eq!(bucket.ask("PUT", "", "same").0, 200);
    let condition = format!("If-Match: {}\r\n", bucket.ask("GET", "", "").1);
    assert_eq!(bucket.ask("PUT", "", "same").0, 200, "the next holder, with its token elsewhere");
    assert_eq!(bucket.ask("PUT", &condition, "late").0, 200);
}

#[test]
fn a_conflict_is_tried_again() {
    let bucket = Bucket::start();
    bucket.objects.lock().expect("no panic").conflicts = 2;
    assert!(bucket.write(5, "first") && bucket.bytes() == "5 first");
    bucket.objects.lock().expect("no panic").conflicts = 1;
    assert!(!bucket.write(4, "late") && bucket.write(6, "next") && bucket.bytes() == "6 next");
}

#[test]
fn tokens_of_racing_writers_are_in_the_object_in_order() {
    let bucket = Bucket::start();
    for round in 0..20 {
        thread::scope(|scope| {
            for at in 0..4 {
                let (bucket, token) = (&bucket, round * 4 + (at * 3 + round) % 4 + 1);
                scope.spawn(move || bucket.write(token, "race"));
            }
        });
        // The newest is never refused.
        assert_eq!(bucket.bytes(), format!("{} race", round * 4 + 4));
    }
    let objects = bucket.objects.lock().expect("no panic");
    let token = |bytes: &String| bytes.split(' ').next().and_then(|token| token.parse::<u64>().ok());
    let tokens: Vec<_> = objects.written.iter().map(token).collect();
    assert!(tokens.is_sorted(), "{tokens:?}");
}
