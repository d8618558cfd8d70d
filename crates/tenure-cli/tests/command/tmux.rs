//! A terminal multiplexer whose screens a test can read.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::env::{BINARY, LIMIT, TestEnv, now, random};

/// A terminal with one program.
pub(crate) struct Tmux<'a> {
    env: &'a TestEnv,
    socket: String,
}

impl<'a> Tmux<'a> {
    /// Runs a shell script on a screen of this size. `$TENURE` is the program.
    pub(crate) fn start(env: &'a TestEnv, columns: u32, rows: u32, script: &str) -> Self {
        // A server that is being killed still has its socket.
        let socket = env.path(&format!("tmux-{:x}", random(u64::MAX))).display().to_string();
        let terminal = Self { env, socket };
        let size = [columns.to_string(), rows.to_string()];
        let mut command =
            terminal.command(&["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1]]);
        command.args(["sh", "-c", &format!("{script}; echo; exec sleep 1000")]);
        assert!(command.status().expect("tmux").success(), "{command:?}");
        terminal
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.env.program("tmux");
        command.env("TENURE", BINARY).env("LC_ALL", "C.UTF-8").env_remove("TMUX").env_remove("NO_COLOR");
        command.args(["-u", "-S", &self.socket]).args(words);
        command
    }

    fn told(&self, words: &[&str]) -> String {
        let said = self.command(words).output().expect("tmux");
        assert!(said.status.success(), "{words:?}: {said:?}");
        String::from_utf8(said.stdout).expect("UTF-8")
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        self.told(&[&["send-keys"], keys].concat());
    }

    pub(crate) fn resize(&self, columns: u32, rows: u32) {
        self.told(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    pub(crate) fn screen(&self) -> Vec<String> {
        self.told(&["capture-pane", "-p"]).lines().map(str::to_owned).collect()
    }

    /// The screen with its colour sequences.
    pub(crate) fn coloured(&self) -> String {
        self.told(&["capture-pane", "-p", "-e"])
    }

    /// The path of the program's terminal.
    pub(crate) fn tty(&self) -> String {
        self.told(&["display-message", "-p", "#{pane_tty}"]).trim().to_owned()
    }

    /// Whether the program uses the alternate screen.
    pub(crate) fn is_alternate(&self) -> bool {
        self.told(&["display-message", "-p", "#{alternate_on}"]).trim() == "1"
    }

    /// Waits until the screen matches, and returns it.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut(&[String]) -> bool) -> Vec<String> {
        let end = now() + LIMIT;
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(now() < end, "not so: {what}\n{}", screen.join("\n"));
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until one of its lines has this text.
    #[track_caller]
    pub(crate) fn expect(&self, text: &str) -> Vec<String> {
        self.until(text, |screen| screen.iter().any(|line| line.contains(text)))
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).status();
    }
}
