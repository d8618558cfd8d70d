//! Where a reply ends, for a proxy that counts replies.

/// These bytes are not RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotResp;

/// Whether this is a message, which answers no request.
pub(super) fn is_push(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'>')
}

/// The length of the first reply. `None` if its end has not come yet.
pub(super) fn length(bytes: &[u8]) -> Result<Option<usize>, NotResp> {
    let mut rest = bytes;
    let mut values = 1_usize;
    while values > 0 {
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
        let (kind, line) = rest[..end].split_first().ok_or(NotResp)?;
        rest = &rest[end + 2..];
        let count = || str::from_utf8(line).ok().and_then(|line| line.parse::<i64>().ok()).ok_or(NotResp);
        match kind {
            b'+' | b'-' | b',' | b'(' | b'#' | b'_' => {}
            b':' => drop(count()?),
            b'$' | b'=' | b'!' => {
                if let Ok(length) = usize::try_from(count()?) {
                    let Some((text, after)) = rest.split_at_checked(length.saturating_add(2)) else {
                        return Ok(None);
                    };
                    rest = text.ends_with(b"\r\n").then_some(after).ok_or(NotResp)?;
                }
            }
            b'*' | b'~' | b'>' => values += usize::try_from(count()?).unwrap_or(0),
            b'%' => values += 2 * usize::try_from(count()?).unwrap_or(0),
            // Attributes stand before the value that they describe.
            b'|' => values += 2 * usize::try_from(count()?).unwrap_or(0) + 1,
            _ => return Err(NotResp),
        }
        values -= 1;
    }
    Ok(Some(bytes.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reply_has_its_length_and_no_part_of_it_has_one() {
        for reply in [
            "+OK\r\n",
            ":-7\r\n",
            "$3\r\na\r\n\r\n",
            "$-1\r\n",
            "-ERR no\r\n",
            "*2\r\n:1\r\n*-1\r\n",
            "%1\r\n+k\r\n#t\r\n",
            ">2\r\n+m\r\n_\r\n",
            "=5\r\ntxt:x\r\n",
            "|1\r\n+a\r\n:1\r\n,1.5\r\n",
            "!4\r\nX no\r\n",
        ] {
            for end in 0..reply.len() {
                assert_eq!(length(&reply.as_bytes()[..end]), Ok(None), "{reply:?} up to {end}");
            }
            assert_eq!(length(format!("{reply}+more\r\n").as_bytes()), Ok(Some(reply.len())), "{reply:?}");
        }
    }

    #[test]
    fn other_bytes_have_no_length() {
        for bytes in ["HTTP/1.1 400\r\n", ":x\r\n", "$1\r\nabc\r\n", "\r\n"] {
            assert_eq!(length(bytes.as_bytes()), Err(NotResp), "{bytes}");
        }
    }
}
