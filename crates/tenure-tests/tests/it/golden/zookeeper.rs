//! ZooKeeper's nodes, read and written without the library, by the messages of `zookeeper.jute`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;

use super::servers::Raw;
use super::*;
use tenure_testkit::servers::{Ensemble, ZooKeeper};

const CREATE: i32 = 1;
const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 8;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
/// As long as the server allows below. What it creates until its end is there as long.
const SESSION_MS: i32 = 2_000_000_000;

/// A server, and a session with it.
pub(super) struct Nodes {
    server: ZooKeeper,
    session: Mutex<TcpStream>,
}

#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn int(self, number: i32) -> Self {
        self.bytes(&number.to_be_bytes())
    }

    fn text(self, text: &str) -> Self {
        self.int(text.len().try_into().expect("a short text")).bytes(text.as_bytes())
    }

    fn exchange(&self, stream: &mut TcpStream) -> Vec<u8> {
        stream.write_all(&Self::default().int(self.0.len() as i32).bytes(&self.0).0).expect("a server");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("a reply");
        let mut reply = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut reply).expect("a reply");
        reply
    }
}

fn take<'a>(reply: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = reply.split_at(count);
    *reply = rest;
    taken
}

fn int(reply: &mut &[u8]) -> i32 {
    i32::from_be_bytes(take(reply, 4).try_into().expect("four bytes"))
}

fn text(reply: &mut &[u8]) -> String {
    let length = int(reply).max(0) as usize;
    String::from_utf8(take(reply, length).to_vec()).expect("text")
}

impl Nodes {
    /// The result code and the rest of the reply.
    fn ask(&self, kind: i32, body: Message) -> (i32, Vec<u8>) {
        let reply = Message::default()
            .int(1)
            .int(kind)
            .bytes(&body.0)
            .exchange(&mut self.session.lock().expect("no panic"));
        let (mut head, rest) = (&reply[12..16], &reply[16..]);
        (int(&mut head), rest.to_vec())
    }

    fn create(&self, path: &str, data: &str, is_ephemeral: bool) {
        // Everybody may do everything.
        let rights = Message::default().int(1).int(31).text("world").text("anyone");
        let create = Message::default().text(path).text(data).bytes(&rights.0).int(is_ephemeral.into());
        let (code, _) = self.ask(CREATE, create);
        assert!(code == 0 || code == NODE_EXISTS && data.is_empty(), "{path}: {code}");
    }

    /// Adds the nodes below this path, each after its parent.
    fn below(&self, root: &str, path: &str, all: &mut Vec<Value>) {
        let (code, reply) =
            self.ask(GET_CHILDREN, Message::default().text(&format!("{root}{path}")).bytes(&[0]));
        if code == NO_NODE {
            return;
        }
        let mut reply = &reply[..];
        let mut names: Vec<String> = (0..int(&mut reply)).map(|_| text(&mut reply)).collect();
        names.sort();
        for name in names {
            let path = format!("{path}/{name}");
            let (_, reply) =
                self.ask(GET_DATA, Message::default().text(&format!("{root}{path}")).bytes(&[0]));
            let mut reply = &reply[..];
            let data = text(&mut reply);
            // After four long numbers and three short ones of the node's stat: the session that it ends with.
            let is_ephemeral = reply[44..52] != [0; 8];
            all.push(json!({ "path": path, "data": data, "ephemeral": is_ephemeral }));
            self.below(root, &path, all);
        }
    }
}

impl Raw for Nodes {
    const TOKENS: bool = false;

    fn has(state: &str) -> bool {
        !state.contains("cached")
    }

    fn start() -> Self {
        let server =
            ZooKeeper::start_with(&format!("minSessionTimeout=500\nmaxSessionTimeout={SESSION_MS}\n"));
        let mut session = server.client();
        session.set_read_timeout(None).expect("no limit");
        // The version of the protocol, the last change that it saw, the session's length, no id and no password.
        let hello =
            Message::default().int(0).bytes(&[0; 8]).int(SESSION_MS).bytes(&[0; 8]).int(16).bytes(&[0; 17]);
        hello.exchange(&mut session);
        Self { server, session: Mutex::new(session) }
    }

    fn url(&self, number: usize) -> String {
        format!("{}/golden{number}", self.server.url())
    }

    fn read(&self, number: usize) -> Vec<Value> {
        let mut all = Vec::new();
        self.below(&format!("/golden{number}"), "", &mut all);
        all
    }

    fn write(&self, number: usize, line: &Value) {
        let text = |name: &str| line[name].as_str().expect("text");
        self.create(&format!("/golden{number}"), "", false);
        let is_ephemeral = line["ephemeral"].as_bool().expect("a flag");
        self.create(&format!("/golden{number}{}", text("path")), text("data"), is_ephemeral);
    }
}
