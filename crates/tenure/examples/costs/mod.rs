//! The resources that the measuring examples use, on this machine and on the server.
#![allow(dead_code, reason = "each of them uses a part")]

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A duration on the command line.
pub(crate) fn seconds(text: &str) -> Result<Duration, Box<dyn Error>> {
    let text = text.strip_suffix('s').ok_or("a time reads `2s`")?;
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

/// Resources used so far; zero for a store without a server.
#[derive(Default)]
pub(crate) struct Costs {
    pub(crate) memory_here: f64,
    pub(crate) cpu_here: f64,
    pub(crate) memory_there: f64,
    pub(crate) cpu_there: f64,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
    pub(crate) scripts: f64,
    pub(crate) commands: f64,
    pub(crate) connections: f64,
}

impl Costs {
    pub(crate) fn now(url: &str) -> Result<Self, Box<dyn Error>> {
        let mut costs =
            Self { memory_here: resident_bytes("self")?, cpu_here: cpu_seconds()?, ..Self::default() };
        let Some(address) = url.strip_prefix("redis://") else { return Ok(costs) };
        let info = info(address.trim_end_matches('/'))?;
        let number = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.trim_start_matches("calls=").split(',').next()?.trim().parse().ok())
                .unwrap_or(0.0)
        };
        costs.memory_there = number("used_memory");
        costs.cpu_there = number("used_cpu_user") + number("used_cpu_sys");
        costs.bytes_in = number("total_net_input_bytes");
        costs.bytes_out = number("total_net_output_bytes");
        costs.scripts = number("cmdstat_evalsha");
        costs.commands = number("total_commands_processed");
        costs.connections = number("connected_clients");
        Ok(costs)
    }
}

fn info(address: &str) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"INFO everything\r\n")?;
    let mut reply = BufReader::new(stream);
    let mut length = String::new();
    reply.read_line(&mut length)?;
    let length = length.trim().strip_prefix('$').ok_or("no reply to INFO")?.parse()?;
    let mut text = vec![0; length];
    reply.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The resident memory of a process; `self` is this one.
pub(crate) fn resident_bytes(process: &str) -> Result<f64, Box<dyn Error>> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    Ok(kib.ok_or("no line about memory")?.parse::<f64>()? * 1024.0)
}

/// CPU time of all threads but the main one, which only waits and polls.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let (mut nanoseconds, first) = (0.0, std::process::id().to_string());
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        if task.file_name().to_str() != Some(&*first) {
            let text = fs::read_to_string(task.path().join("schedstat"))?;
            nanoseconds += text.split(' ').next().unwrap_or_default().parse::<f64>()?;
        }
    }
    Ok(nanoseconds / 1e9)
}
