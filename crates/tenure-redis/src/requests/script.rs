//! The scripts: invoked by their SHA-1, sent in full only if the server does not have them cached.

/// A script and its SHA-1.
pub(crate) struct Script {
    pub(crate) text: &'static str,
    /// Pinned by a test: two versions of a client coexist during an upgrade, so changing a script is a
    /// decision.
    pub(crate) sha: &'static str,
    /// The variant for a restart grace: a server that restarted or was promoted grants nothing for a while.
    pub(crate) guarded: Option<&'static Self>,
}

pub(crate) static MUTEX: Script = Script {
    text: include_str!("../scripts/mutex.lua"),
    sha: "47432cf6f0ed8c84ee65b30d75f44ba68594b0a5",
    guarded: Some(&GUARDED_MUTEX),
};

static GUARDED_MUTEX: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/mutex.lua")),
    sha: "7b21fb51214bdc74cb43a3cce436e877c733ab0c",
    guarded: None,
};

pub(crate) static REENTRANT: Script = Script {
    text: include_str!("../scripts/reentrant.lua"),
    sha: "e3e7237a3d3b742f8e5f6d98fb953d2aa6699c23",
    guarded: Some(&GUARDED_REENTRANT),
};

static GUARDED_REENTRANT: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/reentrant.lua")),
    sha: "592a6d6f6d0ed7204d41e9780d774c3139a87745",
    guarded: None,
};

pub(crate) static QUEUE: Script = Script {
    text: include_str!("../scripts/queue.lua"),
    sha: "685c9b7ecabef12e222f1aaf18ee6f350274a804",
    guarded: Some(&GUARDED_QUEUE),
};

static GUARDED_QUEUE: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/queue.lua")),
    sha: "88666e228ad90271f060cee09551036e1f5ee444",
    guarded: None,
};

/// The release of a mutex by its holder.
pub(crate) static RELEASE: Script = Script {
    text: include_str!("../scripts/release.lua"),
    sha: "ca2b85485f925c6ee3a29349d03fa985d98069a3",
    guarded: None,
};

/// Batched renewals of mutexes by their holders.
pub(crate) static RENEW: Script = Script {
    text: include_str!("../scripts/renew.lua"),
    sha: "d9436ef6e92ff4a4c50bd3a1df712dff30dde12b",
    guarded: None,
};

/// Batched renewals of queue holds.
pub(crate) static RENEW_QUEUE: Script = Script {
    text: include_str!("../scripts/renew_queue.lua"),
    sha: "38c19eec820008838a6717b8a2c2dda61ccfa732",
    guarded: None,
};

pub(crate) static RECORD: Script = Script {
    text: include_str!("../scripts/record.lua"),
    sha: "baec929d5f2ef99e1a54ff1a6d0949f3b4204960",
    guarded: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_named_by_its_sha() {
        for script in [&MUTEX, &REENTRANT, &QUEUE] {
            assert_eq!(script.sha, sha1(script.text.as_bytes()));
            let guarded = script.guarded.expect("each has one");
            assert_eq!(guarded.sha, sha1(guarded.text.as_bytes()));
        }
        for script in [&RELEASE, &RENEW, &RENEW_QUEUE, &RECORD] {
            assert_eq!(script.sha, sha1(script.text.as_bytes()));
        }
        assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
    }

    /// SHA-1, for this test only.
    fn sha1(text: &[u8]) -> String {
        let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
        let mut message = text.to_vec();
        message.push(0x80);
        message.resize((message.len() + 8).next_multiple_of(64) - 8, 0);
        message.extend((text.len() as u64 * 8).to_be_bytes());
        for block in message.chunks_exact(64) {
            let mut words = [0u32; 80];
            for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
                *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            for i in 16..80 {
                words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
            }
            let [mut a, mut b, mut c, mut d, mut e] = state;
            for (i, word) in words.iter().enumerate() {
                let (mix, constant) = match i {
                    0..20 => ((b & c) | (!b & d), 0x5a82_7999),
                    20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                    40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
                    _ => (b ^ c ^ d, 0xca62_c1d6_u32),
                };
                let next = a
                    .rotate_left(5)
                    .wrapping_add(mix)
                    .wrapping_add(e)
                    .wrapping_add(constant)
                    .wrapping_add(*word);
                (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
            }
            for (sum, part) in state.iter_mut().zip([a, b, c, d, e]) {
                *sum = sum.wrapping_add(part);
            }
        }
        state.iter().map(|word| format!("{word:08x}")).collect()
    }
}
