//! A command as it is sent.

use redis::Cmd;

/// The command of these words.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command
}
