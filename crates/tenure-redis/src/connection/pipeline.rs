//! The connection for requests, with what is known of its server.

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
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// An open connection for requests.
pub(crate) struct Pipeline {
    multiplexer: MultiplexerHandle,
    /// Where it goes.
    pub(crate) to: Address,
    pub(crate) peer: Option<Peer>,
    /// How many replies came in while logging in.
    greeted: u64,
    runtime: Arc<dyn Runtime>,
    /// What is known of the server's counter of tokens.
    pub(crate) tokens: Tokens,
    /// The server sees this machine's own address: no proxy could put another server in its place.
    pub(crate) is_direct: bool,
    /// The command that deletes a key with a certain value, once the server was asked.
    pub(crate) delete: OnceLock<Option<Delete>>,
    /// The commands in place of scripts, once the server was found to forbid scripts.
    pub(crate) plain: OnceLock<Scriptless>,
    /// The server's clock, once it was asked for it.
    clock: Locked<Option<ServerClock>>,
    /// The server may not know our scripts: it may be another than before, or an empty one.
    brings_script: AtomicBool,
}

impl Pipeline {
    /// A pipeline over a new connection, and what completes when it is over. `again`: there was one
    /// before. Its deadlines are watched on `runtime`.
    pub(crate) fn new(
        connection: Connection,
        again: bool,
        runtime: Arc<dyn Runtime>,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let Connection { multiplexer, to, peer, is_direct, over, .. } = connection;
        let (shown, silent) = (to.clone(), multiplexer.shared());
        let watch = silent.watch(Arc::clone(&runtime), move || {
            event!(
                WARN,
                target: "tenure",
                "connection_silent",
                "the store is silent: its connection is given up",
                server = text(&shown),
            );
        });
        runtime.spawn(watch.boxed());
        let pipeline = Arc::new(Self {
            greeted: multiplexer.heard(),
            multiplexer,
            to,
            peer,
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

    pub(crate) fn clock(&self) -> Option<ServerClock> {
        *self.clock.lock()
    }

    pub(crate) fn set_clock(&self, clock: Option<ServerClock>) {
        *self.clock.lock() = clock;
    }

    /// Sends the commands that `write` encodes, in one piece with no other between them.
    pub(crate) fn send(
        &self,
        deadline: Moment,
        write: impl FnOnce(&mut Commands),
    ) -> Result<InFlight<'_>, Failure> {
        self.multiplexer.send(Times { sent: self.runtime.now(), due: deadline }, write)
    }

    /// Sends commands in one piece and waits for the reply to the last of them. An error of the
    /// server is a reply.
    pub(crate) async fn ask(&self, commands: &Commands, deadline: Moment) -> Result<Value, Failure> {
        self.send(deadline, |out| out.extend(commands))?.last().await
    }

    /// The same of a server that is about to get the slot that this is about. It listens only if it
    /// is told so directly before.
    pub(crate) async fn ask_for_slot(&self, commands: &Commands, deadline: Moment) -> Result<Value, Failure> {
        self.send(deadline, |out| out.command(&["ASKING"]).extend(commands))?.last().await
    }

    /// Sends commands in one piece and waits for all replies.
    pub(crate) async fn ask_all(&self, commands: &Commands, deadline: Moment) -> Result<Vec<Value>, Failure> {
        self.send(deadline, |out| out.extend(commands))?.all().await
    }

    /// Whether the next request is to bring its script along; said once.
    pub(crate) fn brings_script(&self) -> bool {
        self.brings_script.load(Ordering::Relaxed) && self.brings_script.swap(false, Ordering::Relaxed)
    }

    /// Closes the connection. Callers of unanswered requests are told.
    pub(crate) fn hang_up(&self) {
        self.multiplexer.hang_up();
    }

    /// Whether it was closed, by this side or the other.
    pub(crate) fn is_closed(&self) -> bool {
        self.multiplexer.is_closed()
    }

    /// Whether it has ever answered a request.
    pub(crate) fn has_answered(&self) -> bool {
        self.multiplexer.heard() > self.greeted
    }

    /// Whether a request is unanswered.
    pub(crate) fn has_unanswered(&self) -> bool {
        self.multiplexer.has_unanswered()
    }

    /// Whether a request is unanswered that was sent before this moment, and no reply at all came
    /// in since.
    pub(crate) fn is_silent_since(&self, moment: Moment) -> bool {
        self.multiplexer.is_silent_since(moment)
    }
}
