//! Starts a Redis server. Its directory holds the settings, the socket and the log.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::port::Port;
use super::process::{self, Process};
use super::{Client, Clock, Config, Value, config, fields};

/// Starts a server and waits until it answers. `None` if another process took the port.
pub(super) fn launch(dir: &Path, port: &Port, config: &Config) -> Option<Process> {
    let conf = dir.join("redis.conf");
    fs::write(&conf, config.file(dir, port.number(), &socket(dir))).expect("a writable temporary directory");
    let environment = if config.clock { Clock::environment(dir).to_vec() } else { Vec::new() };
    let environment: Vec<_> = environment.iter().map(|(name, path)| (*name, path.as_path())).collect();
    let conf = conf.to_str().expect("a temporary directory in UTF-8");
    let arguments = if config.is_sentinel { &[conf, "--sentinel"][..] } else { &[conf] };
    let program = std::env::var_os("TENURE_REDIS_SERVER")
        .map_or_else(|| process::program("redis-server", "redis-server"), PathBuf::from);
    let mut process = Process::start(&program, arguments, &environment, &dir.join("log"))
        .unwrap_or_else(|error| panic!("setpriv: {error}; the servers need it: apt-get install util-linux"));

    let start = Instant::now();
    while !is_ready(dir, &process, config) {
        let log = || log(dir);
        if process.has_ended() {
            let taken = log().contains("Address already in use");
            assert!(taken, "the server ended at its start: {}", log());
            return None;
        }
        assert!(start.elapsed() < Duration::from_secs(15), "the server does not answer: {}", log());
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(process)
}

/// If the server has the expected pid, it also has the port: it binds all its addresses or exits.
fn is_ready(dir: &Path, process: &Process, config: &Config) -> bool {
    let ask = || -> io::Result<bool> {
        let mut client = inspector(dir)?;
        let pid = fields(&client.command(&["INFO", "server"])?).remove("process_id");
        let answers = config.keeps_data || client.command(&["PING"])? == "PONG"; // while it loads it does not
        Ok(answers && pid == Some(process.id().to_string()))
    };
    ask().unwrap_or(false)
}

pub(super) fn inspector(dir: &Path) -> io::Result<Client> {
    let mut client = Client::dial_unix(&socket(dir))?;
    match client.command(&["AUTH", config::INSPECTOR, "any"])? {
        Value::Error(message) => Err(io::Error::other(message)),
        _ => Ok(client),
    }
}

pub(super) fn socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

pub(super) fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}
