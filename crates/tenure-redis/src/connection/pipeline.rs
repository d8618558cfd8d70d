//! A connection for requests, with what is known of its server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::future::FutureExt;
use tokio::sync::oneshot;

use crate::connection::multiplexer::{InFlight, MultiplexerHandle, Times};
use crate::connection::scriptless::{Delete, Scriptless};
use crate::connection::server_clock::ServerClock;
use crate::connection::tokens::Tokens;
use crate::connection::{Connection, Peer};
use crate::resp::Value;
use crate::resp::encode::Commands;
use crate::topology::Address;
use tenure_core::moment::Moment;
use tenure_core::net::warn_of_silence;
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, Incarnation};
use tenure_core::sync::Locked;

pub(crate) struct Pipeline {
    multiplexer: MultiplexerHandle,
    /// The server's address.
    pub(crate) to: Address,
    pub(crate) peer: Option<Peer>,
    pub(crate) life: Incarnation,
    /// Number of replies that arrived during login.
    greeted: u64,
    runtime: Arc<dyn Runtime>,
    /// The server's token counter as last observed.
    pub(crate) tokens: Tokens,
    /// The server sees this machine's own address, so no proxy can switch it to another server.
    pub(crate) is_direct: bool,
    /// The compare-and-delete command of the server, once queried.
    pub(crate) delete: OnceLock<Option<Delete>>,
    /// What replaces scripts, once the server is known to forbid them.
    pub(crate) plain: OnceLock<Scriptless>,
    /// The server's clock, once queried.
    clock: Locked<Option<ServerClock>>,
    /// The server may not have the scripts cached: it may have restarted or be another one.
    // Relaxed: it only decides who sends the script; a request that finds it missing sends it again.
    brings_script: AtomicBool,
}

impl Pipeline {
    /// A pipeline over a new connection, with a receiver that completes at its end. `again` if there was an
    /// earlier connection. Deadlines are watched on `runtime`.
    pub(crate) fn new(
        connection: Connection,
        again: bool,
        runtime: Arc<dyn Runtime>,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let Connection { multiplexer, to, peer, life, is_direct, over, .. } = connection;
        let (shown, silent) = (to.clone(), multiplexer.shared());
        runtime.spawn(silent.watch(Arc::clone(&runtime), move || warn_of_silence(shown)).boxed());
        let pipeline = Arc::new(Self {
            greeted: multiplexer.heard(),
            multiplexer,
            to,
            peer,
            life,
            runtime,
            tokens: Tokens::default(),
            is_direct,
            delete: OnceLock::new(),
            plain: OnceLock::new(),
            clock: Locked::default(),
            brings_script: AtomicBool::new(again),
        });
        (pipeline, over)
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    pub(crate) fn clock(&self) -> Option<ServerClock> {
        *self.clock.lock()
    }

    pub(crate) fn set_clock(&self, clock: Option<ServerClock>) {
        *self.clock.lock() = clock;
    }

    /// Sends the commands that `write` encodes, contiguously.
    pub(crate) fn send(
        &self,
        deadline: Moment,
        write: impl FnOnce(&mut Commands),
    ) -> Result<InFlight<'_>, Failure> {
        self.multiplexer.send(Times { sent: self.runtime.now(), due: deadline }, write)
    }

    /// Sends commands contiguously and waits for the reply to the last one. A server error is a reply.
    pub(crate) async fn ask(&self, commands: &Commands, deadline: Moment) -> Result<Value, Failure> {
        self.send(deadline, |out| out.extend(commands))?.last().await
    }

    /// Like `ask`, prefixed with ASKING: a node that is importing a slot serves it only for the command
    /// directly after that.
    pub(crate) async fn ask_for_slot(&self, commands: &Commands, deadline: Moment) -> Result<Value, Failure> {
        self.send(deadline, |out| out.command(&["ASKING"]).extend(commands))?.last().await
    }

    /// Sends commands contiguously and waits for all replies.
    pub(crate) async fn ask_all(&self, commands: &Commands, deadline: Moment) -> Result<Vec<Value>, Failure> {
        self.send(deadline, |out| out.extend(commands))?.all().await
    }

    /// Whether the next request should send its script in full; `true` once per connection.
    pub(crate) fn brings_script(&self) -> bool {
        self.brings_script.load(Ordering::Relaxed) && self.brings_script.swap(false, Ordering::Relaxed)
    }

    /// Closes the connection. Unanswered requests fail.
    pub(crate) fn hang_up(&self) {
        self.multiplexer.hang_up();
    }

    /// Whether it was closed, by either side.
    pub(crate) fn is_closed(&self) -> bool {
        self.multiplexer.is_closed()
    }

    /// Whether the server has answered any request since login.
    pub(crate) fn has_answered(&self) -> bool {
        self.multiplexer.heard() > self.greeted
    }

    pub(crate) fn has_unanswered(&self) -> bool {
        self.multiplexer.has_unanswered()
    }

    /// Whether a request sent before `moment` is unanswered and nothing has arrived since.
    pub(crate) fn is_silent_since(&self, moment: Moment) -> bool {
        self.multiplexer.is_silent_since(moment)
    }
}
