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
    sha: "37d7153695fa3877066f9e3f7eb6d6cd1f44cdd8",
    guarded: Some(&GUARDED_MUTEX),
};

static GUARDED_MUTEX: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/mutex.lua")),
    sha: "30a4d7aea0f9fa99f2f67f2cf0b902693fb7ff1f",
    guarded: None,
};

pub(crate) static REENTRANT: Script = Script {
    text: include_str!("../scripts/reentrant.lua"),
    sha: "2f821576efbc787bc440ea51407279639b294cf0",
    guarded: Some(&GUARDED_REENTRANT),
};

static GUARDED_REENTRANT: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/reentrant.lua")),
    sha: "d2343be2f796d9f93db5296c83142f3273378ea5",
    guarded: None,
};

pub(crate) static QUEUE: Script = Script {
    text: include_str!("../scripts/queue.lua"),
    sha: "01722bc5a0bd7818b2cfa3dc7c7e479aebf8c8d5",
    guarded: Some(&GUARDED_QUEUE),
};

static GUARDED_QUEUE: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/queue.lua")),
    sha: "4d3e1b4fe81db902e582dcc2979206b672f6ea90",
    guarded: None,
};

/// The release of a mutex by its holder.
pub(crate) static RELEASE: Script = Script {
    text: include_str!("../scripts/release.lua"),
    sha: "32b42b5c0e9029f2bb7b6eabcad4dfaee922e7e7",
    guarded: None,
};

/// Batched renewals of mutexes by their holders.
pub(crate) static RENEW: Script = Script {
    text: include_str!("../scripts/renew.lua"),
    sha: "31d18961c52ff1145612b8cc292d7a4312d4ccb9",
    guarded: None,
};

/// Batched renewals of queue holds.
pub(crate) static RENEW_QUEUE: Script = Script {
    text: include_str!("../scripts/renew_queue.lua"),
    sha: "e147654a6217d70aa3d536326a3d9596577d6d66",
    guarded: None,
};

pub(crate) static RECORD: Script = Script {
    text: include_str!("../scripts/record.lua"),
    sha: "ad6ecb09ac52f0d8e298e0a5af98738adbe375b2",
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
