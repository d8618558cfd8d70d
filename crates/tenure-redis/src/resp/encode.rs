//! Encoding of commands.

/// Encoded commands, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    bytes: Vec<u8>,
    count: u32,
    /// Arguments that the last command still needs.
    missing: usize,
}

impl Commands {
    /// Begins a command of `args` arguments, including its name.
    pub(crate) fn begin(&mut self, args: usize) -> &mut Self {
        debug_assert_eq!(self.missing, 0, "arguments of the command before are missing");
        self.missing = args;
        self.count += 1;
        self.header(b'*', args as u64);
        self
    }

    pub(crate) fn arg(&mut self, arg: impl AsRef<[u8]>) -> &mut Self {
        let arg = arg.as_ref();
        debug_assert_ne!(self.missing, 0, "more arguments than announced");
        self.missing = self.missing.wrapping_sub(1);
        self.header(b'$', arg.len() as u64);
        self.bytes.extend_from_slice(arg);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// Appends one argument, given in parts.
    pub(crate) fn parts(&mut self, parts: &[&str]) -> &mut Self {
        debug_assert_ne!(self.missing, 0, "more arguments than announced");
        self.missing = self.missing.wrapping_sub(1);
        self.header(b'$', parts.iter().map(|part| part.len() as u64).sum());
        for part in parts {
            self.bytes.extend_from_slice(part.as_bytes());
        }
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// Appends a number as an argument.
    pub(crate) fn number(&mut self, number: impl Into<u64>) -> &mut Self {
        let mut digits = [0; 20];
        self.arg(decimal(number.into(), &mut digits))
    }

    pub(crate) fn command(&mut self, words: &[&str]) -> &mut Self {
        self.begin(words.len());
        for word in words {
            self.arg(word);
        }
        self
    }

    pub(crate) fn extend(&mut self, others: &Self) {
        debug_assert_eq!((self.missing, others.missing), (0, 0), "an unfinished command");
        self.bytes.extend_from_slice(&others.bytes);
        self.count += others.count;
    }

    /// Number of commands, and so of replies to expect.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties the buffer. Keeps at most `KEPT` bytes of capacity.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        (self.count, self.missing) = (0, 0);
    }

    fn header(&mut self, kind: u8, number: u64) {
        let digit = |number: u64| b'0' + number as u8;
        match number {
            // Nearly all: arrays of known size are copied without a call.
            0..10 => self.bytes.extend_from_slice(&[kind, digit(number), b'\r', b'\n']),
            10..100 => {
                let (tens, ones) = (digit(number / 10), digit(number % 10));
                self.bytes.extend_from_slice(&[kind, tens, ones, b'\r', b'\n']);
            }
            _ => {
                self.bytes.push(kind);
                self.bytes.extend_from_slice(decimal(number, &mut [0; 20]));
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// Capacity that an emptied buffer keeps, in bytes.
pub(crate) const KEPT: usize = 16 * 1024;

pub(crate) fn command(words: &[&str]) -> Commands {
    let mut commands = Commands::default();
    commands.command(words);
    commands
}

/// Formats a decimal number into the buffer.
pub(crate) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut commands = command(&["GET", ""]);
        commands.begin(4).arg("SET").arg(b"\xff\r\n").number(u64::MAX).parts(&["a", "", "bc"]);
        commands.extend(&command(&["PING"]));
        let encoded = b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n*4\r\n$3\r\nSET\r\n$3\r\n\xff\r\n\r\n$20\r\n18446744073709551615\r\n$3\r\nabc\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!((commands.bytes(), commands.count()), (&encoded[..], 3));
        commands.clear();
        assert_eq!((commands.bytes().len(), commands.count()), (0, 0));
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX - 1, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
