//! What was seen, and whether the keys on the server have the state of the Rust machine.

use super::*;

impl Bench {
    /// Records the kind of answer.
    pub(super) fn note(&mut self, key: usize, answer: &Answer, wake: Option<&Notification>) {
        let answer = match answer {
            Answer::More(answer) => {
                self.seen.insert("More".to_owned());
                answer
            }
            answer => answer,
        };
        let kind = format!("{answer:?}");
        self.seen.insert(kind.split([' ', '(']).next().unwrap_or_default().to_owned());
        if let Answer::Released { left: 1 } = answer {
            self.seen.insert("Released 1".to_owned());
        }
        if let (
            Some(Notification::Granted { tickets }),
            Some(ExpiringValue { value: Data::Queue(queue), .. }),
        ) = (wake, &self.states[key].lock)
            && let [number] = tickets[..]
            && queue.tickets().any(|(at, ticket)| at == number && ticket.weight == QueueSpec::WRITER.weight)
            && queue.holding().count() == 1
        {
            self.seen.insert("Grown".to_owned());
        }
        if let Some(Notification::Granted { tickets }) = wake {
            self.seen.insert("Granted".to_owned());
            self.seen.insert(format!("Granted {}", tickets.len()));
        }
        if let (Answer::Places { .. }, Some(ExpiringValue { value: Data::Queue(queue), .. })) =
            (answer, &self.states[key].lock)
            && queue.tickets().any(|(_, ticket)| ticket.deadline_ms < self.now().ms)
        {
            self.seen.insert("Left by the sweep".to_owned());
        }
    }

    /// Checks that the keys have the state of the Rust machine, to the millisecond.
    pub(super) fn compare(&mut self) {
        for key in KEYS {
            let side = side("tenure:ballot:", key);
            for command in [&["TYPE", key][..], &["PTTL", key], &["GET", &side], &["PTTL", &side]] {
                self.eye.send(command).expect("a connection");
            }
        }
        let now = self.now();
        let mut types = Vec::new();
        for (key, state) in KEYS.iter().zip(&mut self.states) {
            // The server deletes expired keys when they are read, so a clock that steps back does not revive
            // them.
            state.lock.take_if(|lock| lock.expires_ms.is_some_and(|end| end < now.ms));
            state.ballot.take_if(|ballot| ballot.expires_ms.is_some_and(|end| end < now.ms));
            let [kind, left, known, known_left] = [(); 4].map(|()| self.eye.receive().expect("a reply"));
            types.push(kind.text().to_owned());
            let lock = state.lock.as_ref();
            assert_eq!(left.int(), lock.map_or(-2, |lock| left_ms(lock.expires_ms, now)), "{key}: {lock:?}");
            let ballot = state.ballot.as_ref();
            assert_eq!(
                known_left.int(),
                ballot.map_or(-2, |ballot| left_ms(ballot.expires_ms, now)),
                "{key}"
            );
            if let Some(ballot) = ballot {
                assert_eq!(known.text(), ballot.value.to_string(), "{key}");
                assert!(
                    known_left.int() > 0 && known_left.int() <= lease::BALLOT_MS as i64 + 100_000,
                    "{key}"
                );
            }
        }
        for ((key, state), kind) in KEYS.iter().zip(&self.states).zip(types) {
            let Some(lock) = &state.lock else {
                assert_eq!(kind, "none", "{key}");
                continue;
            };
            match &lock.value {
                Data::Text(text) if kind == "string" => {
                    assert_eq!(self.eye.command(&["GET", key]).expect("a reply").text(), text, "{key}");
                }
                Data::Text(text) => assert_eq!(format!("({kind})"), *text, "{key}"),
                Data::Hash(hash) => {
                    let all = self.eye.command(&["HGETALL", key]).expect("a reply");
                    assert_eq!(pairs(&all).into_iter().collect::<BTreeMap<_, _>>(), *hash, "{key}");
                }
                Data::Queue(queue) if kind == "string" => {
                    let value = self.eye.command(&["GET", key]).expect("a reply");
                    assert_eq!(value.text(), solo(queue), "{key}");
                    let what = if queue.ticket(0).is_some() { "Bare" } else { "Solo" };
                    self.seen.insert(what.to_owned());
                }
                Data::Queue(queue) => {
                    if queue.owners() == 0 {
                        self.seen.insert("Set and free".to_owned());
                    }
                    let all = self.eye.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).expect("a reply");
                    compare_queue(&pairs(&all), queue);
                }
            }
        }
    }
}

/// Checks that the set of book/contribute/protocol.md has these tickets and nothing else.
fn compare_queue(all: &[(String, String)], queue: &Queue) {
    let mut expected = BTreeMap::new();
    let mut used = 0;
    for (number, ticket) in queue.tickets() {
        expected.insert(ticket.owner.to_string(), number.to_string());
        let listens = ticket.listens.map_or(0.0, |listens| f64::from(listens.get()) / 4096.0);
        expected.insert(format!("!{}", ticket.owner), (ticket.deadline_ms as f64 + listens).to_string());
        if ticket.weight != 1 {
            expected.insert(
                format!("+{}", ticket.owner),
                (8_000_000_000_000_000 + u64::from(ticket.weight)).to_string(),
            );
        }
        if number <= queue.mark {
            used += u64::from(ticket.weight);
        }
    }
    let set = if queue.is_set { "=" } else { "" };
    expected.insert(format!("#1:{}:{set}{}", queue.kind, queue.capacity), negative(queue.mark));
    expected.insert("#used".to_owned(), negative(used));
    let shortest = |score: &String| score.parse::<f64>().expect("a score").to_string();
    let found: BTreeMap<_, _> = all.iter().map(|(member, score)| (member.clone(), shortest(score))).collect();
    assert_eq!(found, expected);
}

/// The string of a queue with one holder and nobody else.
fn solo(queue: &Queue) -> String {
    let tickets: Vec<_> = queue.tickets().collect();
    let [(number, ticket)] = tickets[..] else { panic!("not one ticket: {queue:?}") };
    assert!(number == queue.mark && !queue.is_set, "{queue:?}");
    let token = if number == 0 { String::new() } else { format!("#{number}") };
    format!("{}#1:{}:{}+{}{token}", ticket.owner, queue.kind, queue.capacity, ticket.weight)
}

fn negative(number: u64) -> String {
    if number == 0 { "0".to_owned() } else { format!("-{number}") }
}

fn pairs(list: &Value) -> Vec<(String, String)> {
    list.items().chunks(2).map(|pair| (pair[0].text().to_owned(), pair[1].text().to_owned())).collect()
}
