//! The workers as seen by their parent: started, observed, killed, paused and stopped.
#![expect(clippy::disallowed_methods, reason = "a thread reads what each worker says")]

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_history::judge::Judge;
use tenure_history::line::{self, Line};
use tenure_history::merge::Merge;

use super::worker::{self, Dice, Orders, nanos, now};

/// Maximum number of unprocessed lines; beyond that, workers block.
const UNHEARD: usize = 4096;

/// A line from a worker, or its end.
type News = (u32, Option<Result<Line, String>>);

pub(super) struct Crew {
    /// What every second worker runs in place of this program.
    other: Option<PathBuf>,
    url: String,
    orders: Orders,
    workers: BTreeMap<u32, Worker>,
    started: u32,
    merge: Merge,
    tell: SyncSender<News>,
    news: Receiver<News>,
}

struct Worker {
    child: Child,
    /// The worker ends when this is closed.
    stdin: Option<ChildStdin>,
    /// When it is resumed.
    stopped_until: Option<u64>,
    killed: Option<u64>,
}

impl Crew {
    pub(super) fn new(other: Option<PathBuf>, url: String, orders: Orders) -> Self {
        let (tell, news) = sync_channel(UNHEARD);
        Self { other, url, orders, workers: BTreeMap::new(), started: 0, merge: Merge::default(), tell, news }
    }

    /// Starts another worker. Must be called on a thread that lives as long as the workers may.
    pub(super) fn start(&mut self) -> io::Result<()> {
        let other = self.other.as_deref().filter(|_| self.started % 2 == 1);
        let mut command = worker::command(other, &self.url, &self.orders);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // In a group of its own, so that Ctrl-C ends this process but not the workers, whose last lines are
        // needed.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        self.started += 1;
        let number = self.started;
        self.merge.open(number, now());
        if let Some(stdout) = child.stdout.take() {
            let tell = self.tell.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines() {
                    let Ok(line) = line else { break };
                    let line = line::read(&line).ok_or(line);
                    if tell.send((number, Some(line))).is_err() {
                        return;
                    }
                }
                let _ = tell.send((number, None));
            });
        }
        let stdin = child.stdin.take();
        self.workers.insert(number, Worker { child, stdin, stopped_until: None, killed: None });
        Ok(())
    }

    /// Passes everything that is certain to the judge, and resumes workers whose pause is over.
    pub(super) fn hear(&mut self, judge: &mut Judge) -> io::Result<()> {
        let now = now();
        for worker in self.workers.values_mut() {
            if worker.stopped_until.is_some_and(|until| until <= now) {
                worker.go_on();
            }
        }
        while let Ok((number, news)) = self.news.try_recv() {
            match news {
                Some(Ok(line)) => self.merge.say(number, line),
                Some(Err(line)) => {
                    judge.accuse("harness", format_args!("process {number} wrote a malformed line: {line}"))
                }
                None => {
                    let Some(mut worker) = self.workers.remove(&number) else { continue };
                    let status = worker.child.wait()?;
                    if worker.killed.is_none() && !status.success() {
                        judge.accuse("harness", format_args!("process {number} failed: {status}"));
                    }
                    self.merge.close(number, worker.killed.unwrap_or(0));
                }
            }
        }
        for (time, number, event) in self.merge.by_ref() {
            judge.hear(time, number, event);
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// A random running worker.
    fn any(&mut self, dice: &Dice) -> Option<&mut Worker> {
        let is_up = |worker: &&mut Worker| worker.killed.is_none() && worker.stopped_until.is_none();
        let mut up: Vec<&mut Worker> = self.workers.values_mut().filter(is_up).collect();
        if up.is_empty() {
            return None;
        }
        let chosen = dice.below(up.len() as u64) as usize;
        Some(up.swap_remove(chosen))
    }

    /// Kills a random worker (SIGKILL) and starts another. `false` if there was none.
    pub(super) fn kill_one(&mut self, dice: &Dice) -> io::Result<bool> {
        let Some(worker) = self.any(dice) else { return Ok(false) };
        // Take the time before the kill: until then at least, it believed that it held.
        worker.killed = Some(now());
        worker.child.kill()?;
        self.start()?;
        Ok(true)
    }

    /// Pauses a random worker (SIGSTOP). `false` if there was none.
    pub(super) fn stop_one(&mut self, dice: &Dice, time: Duration) -> bool {
        let Some(worker) = self.any(dice) else { return false };
        worker.stopped_until = Some(now() + nanos(time));
        worker.signal(Signal::STOP);
        true
    }

    pub(super) fn end(&mut self) {
        for worker in self.workers.values_mut() {
            worker.go_on();
            worker.stdin = None;
        }
    }

    /// Kills the workers that have not ended, and returns their numbers.
    pub(super) fn kill_the_rest(&mut self) -> Vec<u32> {
        for worker in self.workers.values_mut() {
            worker.killed = Some(now());
            let _ = worker.child.kill();
        }
        self.workers.keys().copied().collect()
    }
}

impl Worker {
    fn go_on(&mut self) {
        if self.stopped_until.take().is_some() {
            self.signal(Signal::CONT);
        }
    }

    fn signal(&self, signal: Signal) {
        // A child that was not waited for still has its pid.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
