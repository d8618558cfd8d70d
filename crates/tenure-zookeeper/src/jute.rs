//! ZooKeeper's encoding: big-endian numbers and length-prefixed strings.

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn int(mut self, number: i32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, number: i64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn bool(mut self, is: bool) -> Self {
        self.0.push(u8::from(is));
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        // Messages have a limit, so nothing longer is ever sent.
        let mut written = self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        written.0.extend(bytes);
        written
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }
}

/// A message being read. Methods return `None` at the end of the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn bool(&mut self) -> Option<bool> {
        Some(self.take(1)?[0] != 0)
    }

    /// Bytes; a length of -1 stands for none.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        match self.int()? {
            -1 => Some(&[]),
            length => self.take(usize::try_from(length).ok()?),
        }
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    pub(super) fn texts(&mut self) -> Option<Vec<&'a str>> {
        let count = self.int()?.max(0);
        (0..count).map(|_| self.text()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let written = Writer::default().int(-2).long(1 << 40).bool(true).text("a/b").bytes(&[0, 255]);
        let mut read = Reader(&written.0);
        assert_eq!((read.int(), read.long(), read.bool()), (Some(-2), Some(1 << 40), Some(true)));
        assert_eq!((read.text(), read.bytes(), read.int()), (Some("a/b"), Some(&[0, 255][..]), None));
    }

    #[test]
    fn what_is_cut_short_is_not_read() {
        let list = Writer::default().int(2).text("one").text("two").0;
        for length in 0..list.len() {
            assert_eq!(Reader(&list[..length]).texts(), None, "{length}");
        }
        assert_eq!(Reader(&list).texts(), Some(vec!["one", "two"]));
        assert_eq!(Reader(&(-5i32).to_be_bytes()).bytes(), None);
    }
}
