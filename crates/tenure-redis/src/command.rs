//! A command as it is sent.

use redis::Cmd;

/// The command of these words. Its buffers have their size at once: to grow them takes the lock of
/// the allocator, which all threads of a program share.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::with_capacity(words.len(), words.iter().map(|word| word.len()).sum());
    for word in words {
        command.arg(*word);
    }
    command
}
