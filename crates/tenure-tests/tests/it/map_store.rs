//! A store from nothing: a `HashMap` behind a socket. `book/contribute/writing-a-store.md` shows this file.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{Either, FutureExt, TryFutureExt, ready, select};
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::net::{by, pause};
use tenure_core::protocol::{self, Answer, ExpiringValue, Notification, Now, Op, State, codec};
use tenure_core::runtime::Runtime;
use tenure_core::store::{
    Capabilities, Cursor, Failure, Listener, Page, Publisher, Signals, Store, StoreExt, StoreFuture,
    StoreReply, StoreRequest, Topic,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// Maximum fields of a frame, and bytes of a field.
const MOST: u32 = 1 << 20;

/// A frame is the number of its fields, and each field with its length, because names may contain anything.
async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), fields: &[String]) -> io::Result<()> {
    let mut frame = (fields.len() as u32).to_be_bytes().to_vec();
    for field in fields {
        frame.extend((field.len() as u32).to_be_bytes());
        frame.extend(field.as_bytes());
    }
    stream.write_all(&frame).await
}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<String>> {
    let mut fields = Vec::new();
    for _ in 0..length(stream).await? {
        let mut field = vec![0; length(stream).await? as usize];
        stream.read_exact(&mut field).await?;
        fields.push(String::from_utf8(field).map_err(io::Error::other)?);
    }
    Ok(fields)
}

async fn length(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<u32> {
    let length = stream.read_u32().await?;
    if length <= MOST { Ok(length) } else { Err(io::Error::other("the frame is too long")) }
}

/// The server's map. It knows nothing about locks.
#[derive(Default)]
struct Map {
    /// By name: the version of the last write, and the text.
    entries: HashMap<String, (u64, String)>,
    writes: u64,
    /// The last fencing token that a client has assigned.
    token: u64,
    /// The newest connection of each client.
    newest: HashMap<String, u64>,
    watchers: HashMap<String, Vec<mpsc::UnboundedSender<String>>>,
}

impl Map {
    /// `hello CLIENT`: from now on, older connections of the client are rejected.
    fn hello(&mut self, client: &str) -> u64 {
        let newest = self.newest.entry(client.to_owned()).or_default();
        *newest += 1;
        *newest
    }

    /// `get NAME`: the version, the last token and the text. Without an entry, the version is that of the last
    /// write to any: the name may have been written and removed meanwhile.
    fn get(&self, name: &str) -> Vec<String> {
        let (version, text) = self.entries.get(name).cloned().unwrap_or((self.writes, String::new()));
        vec![version.to_string(), self.token.to_string(), text]
    }

    /// `set NAME VERSION TOKEN TEXT MESSAGE…`: writes if the version is still the same, and sends the messages
    /// to those that watch the name.
    fn set(&mut self, name: &str, [version, token, text]: [&str; 3], messages: &[String]) -> Vec<String> {
        let is_same = self.get(name)[0] == version;
        if is_same {
            self.writes += 1;
            self.token = self.token.max(token.parse().unwrap_or(0));
            match text {
                "" => self.entries.remove(name),
                text => self.entries.insert(name.to_owned(), (self.writes, text.to_owned())),
            };
            if let Some(watchers) = self.watchers.get_mut(name) {
                watchers.retain(|watcher| messages.iter().all(|text| watcher.send(text.clone()).is_ok()));
            }
        }
        vec![is_same.to_string()]
    }

    /// `list`: all names, each followed by its text.
    fn list(&self) -> Vec<String> {
        self.entries.iter().flat_map(|(name, (_, text))| [name.clone(), text.clone()]).collect()
    }
}

/// Serves the map until the task is dropped.
async fn serve(listener: TcpListener) -> io::Result<()> {
    let (map, started) = (Arc::<Mutex<Map>>::default(), Instant::now());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve_client(stream, Arc::clone(&map), started).map(drop));
    }
}

/// Each reply begins with the server's clocks, which judge all leases.
async fn serve_client(mut stream: TcpStream, map: Arc<Mutex<Map>>, started: Instant) -> io::Result<()> {
    let mut own = (String::new(), 0);
    loop {
        let request = read_frame(&mut stream).await?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        let mut reply = vec![started.elapsed().as_millis().to_string(), unix.as_micros().to_string()];
        let mut watched = None;
        {
            let mut map = map.lock().map_err(|_| io::Error::other("the server has failed"))?;
            let fields: Vec<&str> = request.iter().map(String::as_str).collect();
            match fields[..] {
                ["hello", client] => own = (client.to_owned(), map.hello(client)),
                ["watch", name] => {
                    let (sender, messages) = mpsc::unbounded_channel();
                    map.watchers.entry(name.to_owned()).or_default().push(sender);
                    watched = Some(messages);
                }
                _ if map.newest.get(&own.0) != Some(&own.1) => return Ok(()),
                ["get", name] => reply.extend(map.get(name)),
                ["set", name, version, token, text, ..] => {
                    reply.extend(map.set(name, [version, token, text], &request[5..]));
                }
                ["list"] => reply.extend(map.list()),
                _ => return Ok(()),
            }
        }
        write_frame(&mut stream, &reply).await?;
        if let Some(messages) = watched {
            return pass_on(stream, messages).await;
        }
    }
}

/// Sends messages until the client closes the connection.
async fn pass_on(mut stream: TcpStream, mut messages: mpsc::UnboundedReceiver<String>) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut closed = pin!(reader.read_u8().map(drop));
    loop {
        match select(pin!(messages.recv()), &mut closed).await {
            Either::Left((Some(message), _)) => write_frame(&mut writer, &[message]).await?,
            _ => return Ok(()),
        }
    }
}

/// The text of a lock in the map; empty if there is none.
fn to_text(state: &State) -> String {
    let Some(ExpiringValue { value, expires_ms }) = &state.lock else { return String::new() };
    let expires = expires_ms.map_or("never".to_owned(), |ms| ms.to_string());
    format!("{expires} {}\n{}", codec::kind(value), codec::encode(value))
}

fn from_text(text: &str) -> Option<State> {
    if text.is_empty() {
        return Some(State::default());
    }
    let (head, value) = text.split_once('\n')?;
    let (expires, kind) = head.split_once(' ')?;
    let expires_ms = if expires == "never" { None } else { Some(expires.parse().ok()?) };
    let value = codec::decode(kind.parse().ok()?, value)?;
    Some(State { lock: Some(ExpiringValue { value, expires_ms }), ballot: None })
}

fn to_message(notification: &Notification) -> String {
    match notification {
        Notification::Granted { tickets } => tickets.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

fn from_message(message: &str) -> Notification {
    let tickets: Vec<u64> = message.split(' ').filter_map(|ticket| ticket.parse().ok()).collect();
    if tickets.is_empty() { Notification::Free { by: None } } else { Notification::Granted { tickets } }
}

/// A reply of the server: its clocks, and the fields.
struct MapReply {
    now: Now,
    fields: Vec<String>,
}

/// One connection to the server. A request that is given up leaves its reply in it, so the connection is dropped
/// then.
struct Connection(TcpStream);

impl Connection {
    async fn open(address: SocketAddr, client: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self(stream);
        connection.ask(&["hello", client]).await?;
        Ok(connection)
    }

    async fn ask(&mut self, request: &[&str]) -> io::Result<MapReply> {
        let request: Vec<String> = request.iter().map(|field| (*field).to_owned()).collect();
        write_frame(&mut self.0, &request).await?;
        let mut fields = read_frame(&mut self.0).await?;
        let rest = fields.split_off(fields.len().min(2));
        let mut clocks = fields.iter().map(|clock| clock.parse().map_err(io::Error::other));
        let mut clock = || clocks.next().unwrap_or_else(|| Err(io::ErrorKind::InvalidData.into()));
        Ok(MapReply { now: Now { ms: clock()?, unix_us: clock()? }, fields: rest })
    }
}

/// A request to the task that has the connection, with the sender of its answer.
enum Job {
    Lock(Op, oneshot::Sender<Result<Answer, Failure>>),
    List(String, oneshot::Sender<Result<Page, Failure>>),
}

/// The store: a client of the map.
#[derive(Debug)]
struct MapStore {
    jobs: mpsc::UnboundedSender<(Job, Moment)>,
    address: SocketAddr,
    runtime: Arc<dyn Runtime>,
    signals: Signals,
    url: Arc<str>,
}

impl MapStore {
    fn new(address: SocketAddr, runtime: Arc<dyn Runtime>) -> Self {
        let (jobs, requests) = mpsc::unbounded_channel();
        let (signals, client) = (Signals::default(), format!("{:032x}", runtime.random_long()));
        let worker = Worker { address, client, runtime: Arc::clone(&runtime), signals: signals.clone() };
        runtime.spawn(worker.run(requests).boxed());
        Self { jobs, address, runtime, signals, url: format!("map://{address}").into() }
    }

    /// Sends a job to the worker when first polled, so that jobs have the order of these polls. A caller that
    /// drops the future only drops the answer.
    fn ask<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(oneshot::Sender<Result<T, Failure>>) -> Job + Send + 'static,
    ) -> StoreFuture<T> {
        let (jobs, runtime) = (self.jobs.clone(), Arc::clone(&self.runtime));
        async move {
            let (sender, answer) = oneshot::channel();
            let deadline = runtime.now() + within;
            let _ = jobs.send((job(sender), deadline));
            match by(&*runtime, deadline, answer).await {
                Some(Ok(answer)) => answer,
                _ => Err(Failure::Unknown(Failure::cause("there was no answer in time"))),
            }
        }
        .boxed()
    }
}

impl Store for MapStore {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        match request {
            StoreRequest::Lock(op) => {
                self.ask(within, |reply| Job::Lock(op, reply)).map_ok(StoreReply::Lock).boxed()
            }
            StoreRequest::Record(_) => ready(Err(Failure::impossible(NO_VALUES))).boxed(),
            StoreRequest::Renewals(ops) => self.renew_each(ops, within),
        }
    }

    /// Every watcher gets every message, whatever its purpose.
    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let (runtime, deadline) = (Arc::clone(&self.runtime), self.runtime.now() + within);
        let (opened, is_open) = oneshot::channel();
        let (address, name) = (self.address, topic.name.as_str().to_owned());
        async move {
            let listener = Listener::new(|publisher| {
                runtime.spawn(watch(address, name, publisher, opened, Arc::clone(&runtime)).boxed());
                Box::new(())
            });
            match by(&*runtime, deadline, is_open).await {
                Some(Ok(())) => Ok(listener),
                _ => Err(Failure::NotSent(Failure::cause("there was no connection in time"))),
            }
        }
        .boxed()
    }

    fn list(&self, prefix: &str, _from: Cursor, within: Duration) -> StoreFuture<Page> {
        let prefix = prefix.to_owned();
        self.ask(within, |reply| Job::List(prefix, reply))
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        self.list("", Cursor::default(), within).map_ok(drop).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { values: Err(NO_VALUES), ..Capabilities::SERVER }
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

const NO_VALUES: &str = "the map keeps no records";

/// Carries out one request after the other on one connection, on the thread of the `Locks`.
struct Worker {
    address: SocketAddr,
    client: String,
    runtime: Arc<dyn Runtime>,
    signals: Signals,
}

impl Worker {
    /// Ends when the store is dropped.
    async fn run(self, mut jobs: mpsc::UnboundedReceiver<(Job, Moment)>) {
        let (mut connection, mut is_first) = (None, true);
        while let Some((job, deadline)) = jobs.recv().await {
            if self.runtime.now() >= deadline {
                continue;
            }
            if connection.is_none() {
                let opening = Connection::open(self.address, &self.client);
                match by(&*self.runtime, deadline, opening).await {
                    Some(Ok(opened)) => connection = Some(opened),
                    failed => {
                        let late = || io::Error::from(io::ErrorKind::TimedOut);
                        let why = failed.and_then(Result::err).unwrap_or_else(late);
                        job.fail(Failure::NotSent(Arc::new(why)));
                        continue;
                    }
                }
                // Messages and leases may have been lost with the connection before.
                if !std::mem::take(&mut is_first) {
                    self.signals.interrupt();
                }
            }
            let Some(opened) = &mut connection else { continue };
            if !self.carry_out(job, opened, deadline).await {
                // The next one begins with `hello`: from then on, no request of this one takes effect.
                connection = None;
            }
        }
    }

    async fn carry_out(&self, job: Job, connection: &mut Connection, deadline: Moment) -> bool {
        match job {
            Job::Lock(op, reply) => self.answer(lock(connection, &op), deadline, reply).await,
            Job::List(prefix, reply) => self.answer(list(connection, &prefix), deadline, reply).await,
        }
    }

    /// Does the work and sends the answer. Returns whether the connection can be used again.
    async fn answer<T>(
        &self,
        work: impl Future<Output = io::Result<T>>,
        deadline: Moment,
        reply: oneshot::Sender<Result<T, Failure>>,
    ) -> bool {
        let answer = match by(&*self.runtime, deadline, work).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(Failure::Unknown(Arc::new(error))),
            None => Err(Failure::Unknown(Failure::cause("there was no answer in time"))),
        };
        let is_usable = answer.is_ok();
        let _ = reply.send(answer);
        is_usable
    }
}

impl Job {
    fn fail(self, failure: Failure) {
        match self {
            Self::Lock(_, reply) => drop(reply.send(Err(failure))),
            Self::List(_, reply) => drop(reply.send(Err(failure))),
        }
    }
}

/// Reads the lock, runs the state machine, and writes the result if nobody else has written meanwhile. A write
/// that was not accepted has certainly done nothing, so this may start over.
async fn lock(connection: &mut Connection, op: &Op) -> io::Result<Answer> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let MapReply { now, fields } = connection.ask(&["get", op.name.as_str()]).await?;
        let [version, token, text] = &fields[..] else { return Err(malformed()) };
        let mut token = token.parse().map_err(io::Error::other)?;
        let mut state = from_text(text).ok_or_else(malformed)?;
        let (answer, wake) = protocol::apply(&mut state, &mut token, now, op);
        let after = to_text(&state);
        if after == *text {
            return Ok(answer);
        }
        let messages: Vec<_> = wake.into_iter().chain(protocol::forced(op, &answer)).collect();
        let messages: Vec<String> = messages.iter().map(to_message).collect();
        let token = token.to_string();
        let mut request = vec!["set", op.name.as_str(), version, &token, &after];
        request.extend(messages.iter().map(String::as_str));
        if connection.ask(&request).await?.fields == ["true"] {
            return Ok(answer);
        }
    }
}

async fn list(connection: &mut Connection, prefix: &str) -> io::Result<Page> {
    let MapReply { now, fields } = connection.ask(&["list"]).await?;
    let mut page = Page::default();
    for entry in fields.chunks_exact(2) {
        if let (Ok(name), Some(state)) = (LockName::new(&entry[0]), from_text(&entry[1]))
            && name.as_str().starts_with(prefix)
            && let Some(found) = protocol::found(&state, now)
        {
            page.locks.push((name, found));
        }
    }
    Ok(page)
}

/// Watches a name until the listener is dropped, and connects again whenever the connection is lost.
async fn watch(
    address: SocketAddr,
    name: String,
    publisher: Publisher,
    opened: oneshot::Sender<()>,
    runtime: Arc<dyn Runtime>,
) {
    let (mut opened, mut tries) = (Some(opened), 0);
    while !publisher.is_over() {
        let watching = async {
            let mut connection = Connection(TcpStream::connect(address).await?);
            connection.ask(&["watch", &name]).await?;
            tries = 0;
            match opened.take() {
                Some(opened) => drop(opened.send(())),
                None => publisher.say(Notification::Reconnected),
            }
            loop {
                let messages = read_frame(&mut connection.0).await?;
                messages.iter().for_each(|message| publisher.say(from_message(message)));
            }
        };
        let watching = watching.map(|_: io::Result<()>| ());
        select(pin!(watching), pin!(publisher.over())).await;
        tries += 1;
        runtime.sleep_until(runtime.now() + pause(tries, runtime.random())).await;
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::conformance::{Case, Fixture, Flavour, on_store};

    use super::*;

    /// A server on a thread of its own.
    fn server() -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async { serve(TcpListener::from_std(listener)?).await })
        });
        address
    }

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let address = server();
        on_store(flavour, case, move |runtime| Ok(Arc::new(MapStore::new(address, runtime))));
    }

    tenure_testkit::conformance!(crate::map_store::tests::run);
}
