//! The statements of a connection.

use super::*;

/// A connection as its client has it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) server: Server,
    pub(super) label: String,
    pub(super) heard: Arc<AtomicU64>,
}

impl Line {
    fn ask<T: Send + 'static>(
        &self,
        name: &'static str,
        job: impl FnOnce(Server, String) -> BoxFuture<'static, Option<T>> + Send + 'static,
    ) -> StatementResult<'static, T> {
        let (server, label) = (self.server.clone(), self.label.clone());
        async move {
            let (promise, answer) = oneshot::channel();
            server.send(&label, name, promise, job);
            let closed = |_| {
                let cause = Failure::cause("the connection is closed");
                let failure = match name {
                    "read" | "list" | "listen" | "ping" => Failure::NotSent(cause),
                    _ => Failure::Unknown(cause),
                };
                Err(StatementError { failure, ends_connection: true })
            };
            answer.await.unwrap_or_else(closed)
        }
        .boxed()
    }

    /// A statement of one step.
    fn ask_once<T: Send + 'static>(
        &self,
        name: &'static str,
        step: impl FnOnce(&mut Table, i64, &dyn Fn() -> bool) -> T + Send + 'static,
    ) -> StatementResult<'static, T> {
        self.ask(name, |server, label| async move { server.step(&label, step) }.boxed())
    }

    /// Changes of several rows: one step, or on MySQL a statement and a step for each.
    fn ask_each<C: Send + 'static, T: Send + 'static>(
        &self,
        name: &'static str,
        mut changes: Vec<C>,
        step: fn(&mut Table, &[C], i64, &dyn Fn() -> bool) -> T,
    ) -> StatementResult<'static, Vec<T>> {
        self.ask(name, move |server, label| {
            async move {
                let together = if server.polls() { 1 } else { changes.len() };
                let mut done = Vec::new();
                while !changes.is_empty() {
                    let part: Vec<C> = changes.drain(..together).collect();
                    done.push(server.step(&label, |table, us, is_locked| step(table, &part, us, is_locked))?);
                    if !changes.is_empty() {
                        let delay = server.latency(&server.state(), server.process);
                        server.sleep(delay).await;
                    }
                }
                Some(done)
            }
            .boxed()
        })
    }
}

/// An acquire may wait for the row.
async fn pause(server: &Server) {
    let Faults { latency, late, .. } = server.state().faults;
    if server.host.chance(late.0.max(25)) {
        let delay = server.host.span(0, if late.1 > 0 { late.1.min(300 * MS) } else { latency.1 });
        server.sleep(delay).await;
    }
}

impl StatementSession for Line {
    fn label(&self) -> &str {
        &self.label
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn change<'a>(&'a self, changes: &'a [SoleChange]) -> StatementResult<'a, ChangeOutcome> {
        let changes = changes.to_vec();
        let has = |verb: SoleVerb| changes.iter().any(|change| change.verb == verb);
        let acquires = has(SoleVerb::Acquire);
        let name = match (acquires, has(SoleVerb::Renew)) {
            (true, _) => "acquire",
            (false, true) => "renew",
            (false, false) => "release",
        };
        let changed = self.ask(name, move |server, label| {
            async move {
                let drawn = server.step(&label, |table, us, _| table.draw(us))?;
                if acquires {
                    pause(&server).await;
                }
                server.step(&label, |table, us, is_locked| table.change(&changes, (&drawn, us), is_locked))
            }
            .boxed()
        });
        async move { Ok(ChangeOutcome { tokens: changed.await?, ..ChangeOutcome::default() }) }.boxed()
    }

    fn read<'a>(&'a self, names: &'a [String], with_records: bool) -> StatementResult<'a, Vec<Row>> {
        let names = names.to_vec();
        self.ask_once("read", move |table, us, _| table.read(&names, with_records, us))
    }

    fn write<'a>(&'a self, changes: &'a [(LockKey, RowChange)]) -> StatementResult<'a, WriteOutcome> {
        let parts = self.ask_each("write", changes.to_vec(), Table::write);
        let merged = |parts: Vec<WriteOutcome>| {
            parts.into_iter().fold(WriteOutcome::default(), |mut all, part| {
                all.written.extend(part.written);
                all.refused.extend(part.refused);
                all
            })
        };
        async move { parts.await.map(merged) }.boxed()
    }

    fn note_listeners<'a>(&'a self, keys: &'a [LockKey]) -> StatementResult<'a, ()> {
        let keys = keys.to_vec();
        self.ask_once("note_listeners", move |table, us, _| table.note_listeners(&keys, us))
    }

    fn forget_sessions<'a>(&'a self, keys: &'a [LockKey]) -> StatementResult<'a, ()> {
        let keys = keys.to_vec();
        self.ask_once("forget_sessions", move |table, _, _| table.forget_sessions(&keys))
    }

    fn listen(&self) -> StatementResult<'_, ()> {
        self.ask("listen", |server, label| {
            async move {
                server.step(&label, |_, _, _| ())?;
                server.state().links.get_mut(&label)?.listens = true;
                Some(())
            }
            .boxed()
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.ask_once("list", move |table, us, _| table.list(&prefix, &after, us))
    }

    fn records<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.ask_once("records", move |table, us, _| table.records(&prefix, &after, us))
    }

    fn sweep<'a>(&'a self, after: &'a str) -> StatementResult<'a, Option<String>> {
        let (after, page) = (after.to_owned(), self.server.state().page);
        self.ask_once("sweep", move |table, us, is_locked| table.sweep(&after, page, us, is_locked))
    }

    fn ping(&self) -> StatementResult<'_, ()> {
        self.ask_once("ping", |_, _, _| ())
    }
}
