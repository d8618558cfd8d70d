//! The fake server on a port, in real time.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a socket takes real time and threads"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use super::server::Server;

/// A fake server on a loopback port, scripted by the test. Runs until the process ends.
#[derive(Debug)]
pub struct FakeRedis {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl FakeRedis {
    /// Starts a server. `answer` receives the words of each command and returns RESP, in which `PORT` is
    /// replaced by the server's port; if it returns `None`, the server answers itself.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn start(mut answer: impl FnMut(&[&str]) -> Option<String> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (heard, port) = (Arc::clone(&asked), address.port().to_string());
        let mut server = Server::default();
        server.player = Some(Box::new(move |words: &[&str]| {
            heard.lock().unwrap_or_else(PoisonError::into_inner).push(words.join(" "));
            answer(words).map(|reply| reply.replace("PORT", &port))
        }));
        let server = Arc::new(Mutex::new(server));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = Arc::clone(&server);
                thread::spawn(move || serve(stream, &server));
            }
        });
        Self { address, asked }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of commands received that start with these words.
    pub fn asked(&self, command: &str) -> usize {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().filter(|asked| asked.starts_with(command)).count()
    }
}

fn serve(mut stream: TcpStream, server: &Mutex<Server>) {
    let started = Instant::now();
    let lock = || server.lock().unwrap_or_else(PoisonError::into_inner);
    let mut session = lock().session();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let now = started.elapsed().as_nanos() as u64;
        let said = lock().hear(&mut session, &buffer[..length], now, &None);
        if stream.write_all(&said.reply).is_err() {
            return;
        }
    }
}
