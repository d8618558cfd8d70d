//! Master discovery through Sentinel.

use std::sync::{Arc, MutexGuard};

use crate::replies::bytes;
use crate::replies::failure::{self, Undialled, is_of_dial};
use crate::resp::Value;
use crate::resp::encode::{Commands, command};
use crate::topology::{Access, Address, Sentinels, Target};
use tenure_core::name::Quoted;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Resolves the master of one service.
pub(crate) struct SentinelResolver {
    /// Most recently responsive sentinel first.
    sentinels: Locked<Vec<Target>>,
    service: String,
    master: Access,
}

impl SentinelResolver {
    pub(crate) fn new(Sentinels { at, service, master }: Sentinels) -> Self {
        Self { sentinels: Locked::new(at), service, master }
    }

    /// An independent copy.
    pub(crate) fn fresh(&self) -> Self {
        Self {
            sentinels: Locked::new(self.in_turn()),
            service: self.service.clone(),
            master: self.master.clone(),
        }
    }

    /// The sentinels in the order in which to ask them.
    pub(crate) fn in_turn(&self) -> Vec<Target> {
        self.sentinels().clone()
    }

    /// Moves a sentinel that answered to the front.
    pub(crate) fn remember(&self, sentinel: &Target) {
        let mut sentinels = self.sentinels();
        if let Some(at) = sentinels.iter().position(|known| known == sentinel) {
            sentinels[..=at].rotate_right(1);
        }
    }

    fn sentinels(&self) -> MutexGuard<'_, Vec<Target>> {
        self.sentinels.lock()
    }

    pub(crate) fn question(&self) -> Commands {
        command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.service])
    }

    /// The master that a sentinel named.
    pub(crate) fn master(&self, reply: Value) -> Result<Target, Failure> {
        let text = |value| std::str::from_utf8(bytes(value)?).ok();
        match reply {
            Value::Nil => Err(Failure::Refused(Failure::cause(format!(
                "it does not know the service {}",
                Quoted(&self.service)
            )))),
            Value::ServerError(error) => Err(failure::of(&error).0),
            Value::Array(parts) => match &parts[..] {
                [host, port] => text(host)
                    .filter(|host| !host.is_empty())
                    .zip(text(port).and_then(|port| port.parse().ok()).filter(|port| *port != 0))
                    .map(|(host, port)| Address::Tcp(host.to_owned(), port)),
                _ => None,
            }
            .map(|address| Target { address, access: self.master.clone() })
            .ok_or_else(|| Failure::NotSent(Failure::cause("it names a server without an address"))),
            _ => Err(Failure::NotSent(Failure::cause("its answer is malformed: is it a sentinel?"))),
        }
    }

    /// Why no master was found, of the sentinels and of the masters that they `named`. `Refused` only if every
    /// failure was.
    pub(crate) fn failure(&self, said: &[(Address, Failure)], named: &[Address]) -> Failure {
        let role = |who| if named.contains(who) { "master at " } else { "" };
        let each: Vec<_> =
            said.iter().map(|(who, failure)| format!("{}{who}: {failure}", role(who))).collect();
        let text = format!("no master of service {} was found ({})", Quoted(&self.service), each.join("; "));
        if said.iter().all(|(_, failure)| is_of_dial(failure)) {
            return Failure::NotSent(Arc::new(Undialled(text)));
        }
        if said.iter().any(|(_, failure)| failure.is_full()) {
            return Failure::full(text);
        }
        let cause = Failure::cause(text);
        match said.iter().all(|(_, failure)| matches!(failure, Failure::Refused(_))) {
            true => Failure::Refused(cause),
            false => Failure::NotSent(cause),
        }
    }
}

/// Checks the server's own ROLE against the sentinel's claim that it is the master.
pub(crate) fn is_master(role: &Value) -> Result<(), Failure> {
    let said = match role {
        Value::ServerError(error) => return Err(failure::of(error).0),
        Value::Array(parts) => parts.first().and_then(bytes).unwrap_or_default(),
        _ => &[],
    };
    match said {
        b"master" => Ok(()),
        b"slave" => Err(Failure::NotSent(Failure::cause("it is now a replica"))),
        _ => Err(Failure::NotSent(Failure::cause("it does not report that it is a master"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;

    fn resolver() -> SentinelResolver {
        match Topology::parse("redis-sentinel://:pw@a,b,c/s/3") {
            Ok(Topology::Sentinel(sentinels)) => SentinelResolver::new(sentinels),
            other => panic!("{other:?}"),
        }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn who_answered_last_is_asked_first_and_the_others_keep_their_order() {
        let resolver = resolver();
        let order = || {
            let hosts = resolver.in_turn().into_iter().map(|target| target.address.to_string());
            hosts.map(|host| host[..1].to_owned()).collect::<String>()
        };
        assert_eq!(order(), "abc");
        resolver.remember(&resolver.in_turn()[2]);
        assert_eq!(order(), "cab");
        resolver.remember(&resolver.in_turn()[0]);
        assert_eq!(order(), "cab");
        resolver.remember(&resolver.in_turn()[1]);
        assert_eq!(order(), "acb");
    }

    #[test]
    fn only_an_address_is_a_master() {
        let resolver = resolver();
        let named = resolver.master(Value::Array(vec![bulk("::1"), bulk("7")])).expect("an address");
        assert_eq!(&*named.shown(), "redis://[::1]:7/3");
        assert!(named.access.login.password.is_some());
        assert!(matches!(resolver.master(Value::Nil), Err(Failure::Refused(_))));
        for reply in [
            Value::SimpleString("OK".into()),
            Value::Array(vec![]),
            Value::Array(vec![bulk("a"), bulk("0")]),
            Value::Array(vec![bulk("a"), bulk("port")]),
            Value::Array(vec![bulk(""), bulk("7")]),
            Value::Array(vec![Value::Nil, Value::Nil]),
        ] {
            assert!(matches!(resolver.master(reply), Err(Failure::NotSent(_))));
        }
    }

    #[test]
    fn one_sentinel_that_may_know_better_later_is_enough_to_ask_again() {
        let resolver = resolver();
        let at = |host: &str| Address::Tcp(host.into(), 1);
        let refused = || Failure::Refused(Failure::cause("no"));
        let failure = resolver.failure(&[(at("a"), refused()), (at("b"), refused())], &[]);
        assert!(matches!(failure, Failure::Refused(_)));
        let late = Failure::NotSent(Failure::cause("late"));
        let failure = resolver.failure(&[(at("a"), refused()), (at("b"), late)], &[at("b")]);
        assert!(matches!(failure, Failure::NotSent(_)));
        let said = failure.to_string();
        assert!(
            said.contains("`s`") && said.contains("a:1: refused: no; master at b:1: not sent: late"),
            "{said}"
        );
    }

    #[test]
    fn only_a_master_is_one() {
        let role = |name: &str| Value::Array(vec![bulk(name), Value::Int(0), Value::Array(vec![])]);
        assert!(is_master(&role("master")).is_ok());
        for other in [role("slave"), role("sentinel"), Value::Nil, Value::Array(vec![])] {
            assert!(is_master(&other).is_err());
        }
    }
}
