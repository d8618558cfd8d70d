//! Replies: their values, and where they end.

use tenure_testkit::proxy::reply::{NotResp, length};
use tenure_testkit::servers::Value;

#[test]
fn each_kind_of_reply_is_read() {
    let replies = b"+OK\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n-ERR no\r\n*2\r\n:1\r\n*-1\r\n\
        %1\r\n+k\r\n#t\r\n>2\r\n+message\r\n_\r\n=5\r\ntxt:x\r\n|1\r\n+a\r\n:1\r\n,1.5\r\n!4\r\nX no\r\n";
    let text = |text: &str| Value::Bytes(text.into());
    let expected = [
        text("OK"),
        Value::Int(-7),
        text("a\r\n"),
        Value::Nil,
        Value::Error("ERR no".into()),
        Value::Array(vec![Value::Int(1), Value::Nil]),
        Value::Array(vec![text("k"), Value::Bool(true)]),
        Value::Push(vec![text("message"), Value::Nil]),
        text("x"),
        text("1.5"),
        Value::Error("X no".into()),
    ];
    let (mut parser, mut replies) = (redis::Parser::new(), &replies[..]);
    let read = [(); 11].map(|()| Value::from(parser.parse_value(&mut replies).unwrap()));
    assert_eq!(read, expected);
}

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
