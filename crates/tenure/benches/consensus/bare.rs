//! The bare requests: a connection on its own thread.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use http::uri::PathAndQuery;
use prost::{Message, Oneof};
use tokio::runtime::Builder;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// A key or node that is created and deleted.
const NAME: &str = "/bare";
const VALUE: &str = "user/label@host:1234/0123456789abcdef0123456789abcdef";

/// A connection to a server.
pub(crate) struct Bare {
    asks: Sender<()>,
    answers: Receiver<()>,
}

impl Bare {
    /// Creates and deletes it.
    pub(crate) fn pair(&self) {
        for _ in 0..2 {
            self.asks.send(()).expect("the thread lives");
            self.answers.recv().expect("an answer");
        }
    }

    fn on_a_thread(serve: impl FnOnce(Receiver<()>, Sender<()>) + Send + 'static) -> Self {
        let ((asks, asked), (answer, answers)) = (channel(), channel());
        thread::spawn(move || serve(asked, answer));
        Self { asks, answers }
    }

    pub(crate) fn etcd(address: SocketAddr) -> Self {
        Self::on_a_thread(move |asked, answer| {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
                let channel = endpoint.tcp_nodelay(true).connect().await.expect("a connection");
                let put = Put { key: NAME.into(), value: VALUE.into() };
                let is_free = Compare { key: NAME.into(), of_creation: 1, created: Some(Created::At(0)) };
                let step = Step { put: Some(put) };
                let put = Txn { compare: vec![is_free], success: vec![step] };
                let delete = Delete { key: NAME.into() };
                while asked.recv().is_ok() {
                    let done: Done = unary(&channel, put.clone(), "/etcdserverpb.KV/Txn").await;
                    assert!(done.succeeded, "the key was not there");
                    answer.send(()).expect("the benchmark waits");
                    if asked.recv().is_err() {
                        return;
                    }
                    let _: Nothing = unary(&channel, delete.clone(), "/etcdserverpb.KV/DeleteRange").await;
                    answer.send(()).expect("the benchmark waits");
                }
            });
        })
    }

    pub(crate) fn zookeeper(address: SocketAddr) -> Self {
        Self::on_a_thread(move |asked, answer| {
            let mut stream = TcpStream::connect(address).expect("a connection");
            stream.set_nodelay(true).expect("a socket");
            let text = |text: &str| [&(text.len() as i32).to_be_bytes()[..], text.as_bytes()].concat();
            let int = |number: i32| number.to_be_bytes();
            // A session timeout of one minute.
            let connect = [&[0; 12][..], &int(60_000), &[0; 8], &int(16), &[0; 17]].concat();
            exchange(&mut stream, &connect);
            let rights = [&int(1)[..], &int(31), &text("world"), &text("anyone")].concat();
            let create = [&int(1)[..], &text(NAME), &text(VALUE), &rights, &int(0)].concat();
            let delete = [&int(2)[..], &text(NAME), &int(-1)].concat();
            for (number, request) in (1..).zip([create, delete].iter().cycle()) {
                if asked.recv().is_err() {
                    return;
                }
                let said = exchange(&mut stream, &[&int(number)[..], request].concat());
                assert_eq!(said[12..16], [0; 4], "no error");
                answer.send(()).expect("the benchmark waits");
            }
        })
    }
}

fn exchange(stream: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    let length = (message.len() as i32).to_be_bytes();
    stream.write_all(&[&length, message].concat()).expect("a request");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut said = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut said).expect("an answer");
    said
}

async fn unary<M, A>(channel: &Channel, message: M, path: &'static str) -> A
where
    M: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.expect("a connection");
    let path = PathAndQuery::from_static(path);
    let answer = grpc.unary(Request::new(message), path, ProstCodec::default()).await;
    answer.expect("an answer").into_inner()
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Step {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    of_creation: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Created", tags = "5")]
    created: Option<Created>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
enum Created {
    #[prost(int64, tag = "5")]
    At(i64),
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Step>,
}

#[derive(Clone, PartialEq, Message)]
struct Done {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}
