//! RESP framing, for a proxy that counts replies.

/// The bytes are not RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotResp;

/// Whether this is a push, which answers no request.
pub fn is_push(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'>')
}

/// The length of the first reply in bytes; `None` if it is incomplete.
///
/// # Errors
/// If the bytes are not RESP.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, NotResp> {
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
            // Attributes precede the value that they describe.
            b'|' => values += 2 * usize::try_from(count()?).unwrap_or(0) + 1,
            _ => return Err(NotResp),
        }
        values -= 1;
    }
    Ok(Some(bytes.len() - rest.len()))
}
