//! Events of a task, one per line: written by the task, read by the judge.

use std::fmt;

/// The kinds of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// One holder, in no particular order.
    Mutex,
    /// One holder, first come, first served.
    Fair,
    /// Readers or a writer.
    Rwlock,
    /// Several permits.
    Semaphore,
    /// One owner, with counted holds.
    Reentrant,
}

impl Sort {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Mutex, Self::Fair, Self::Rwlock, Self::Semaphore, Self::Reentrant];

    /// The kind's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair",
            Self::Rwlock => "rwlock",
            Self::Semaphore => "semaphore",
            Self::Reentrant => "reentrant",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.name() == name)
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A contended lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// Its kind.
    pub sort: Sort,
    /// Its number within the kind.
    pub number: u32,
    /// Maximum total weight of holders. A hold that takes all of it is exclusive.
    pub capacity: u32,
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.sort, self.number)
    }
}

/// An event of a task. Times are in nanoseconds, on the machine's clock that also runs during suspend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it occurred.
    pub time: u64,
    /// The number of the task within its process.
    pub task: u32,
    /// The event.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Started to request a lock.
    Asks(Lock),
    /// Was granted the lock.
    Holds {
        /// The fencing token.
        token: u64,
        /// The weight of the hold.
        weight: u32,
        /// When the lease ends without a renewal.
        deadline: u64,
    },
    /// The lease was renewed.
    Keeps {
        /// When the lease ends now.
        deadline: u64,
    },
    /// Stopped holding.
    Ends {
        /// When its guard last reported that it held.
        until: u64,
        /// How it ended.
        how: End,
    },
    /// Stopped requesting without a grant.
    Leaves,
    /// A request failed.
    Fails(String),
    /// The task itself observed a violation.
    Wrong(String),
    /// A heartbeat.
    Lives,
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Released by its task.
    Released,
    /// Its guard was dropped.
    Dropped,
    /// Its lease expired or was taken away.
    Lost,
    /// With its process. Inferred by the judge, never written.
    Killed,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "released",
            Self::Dropped => "dropped",
            Self::Lost => "lost",
            Self::Killed => "killed",
        })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one_line = |text: &str| text.replace(char::is_control, " ");
        write!(f, "{} {} ", self.time, self.task)?;
        match &self.what {
            What::Asks(Lock { sort, number, capacity }) => write!(f, "asks {sort} {number} {capacity}"),
            What::Holds { token, weight, deadline } => write!(f, "holds {token} {weight} {deadline}"),
            What::Keeps { deadline } => write!(f, "keeps {deadline}"),
            What::Ends { until, how } => write!(f, "ends {until} {how}"),
            What::Leaves => write!(f, "leaves"),
            What::Fails(why) => write!(f, "fails {}", one_line(why)),
            What::Wrong(what) => write!(f, "wrong {}", one_line(what)),
            What::Lives => write!(f, "lives"),
        }
    }
}

/// Parses a line; `None` if it is malformed.
pub fn read(line: &str) -> Option<Line> {
    let mut words = line.splitn(4, ' ');
    let (time, task) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (verb, rest) = (words.next()?, words.next());
    let words: Vec<&str> = rest.unwrap_or("").split(' ').collect();
    let what = match (verb, &words[..]) {
        ("asks", [sort, number, capacity]) => What::Asks(Lock {
            sort: Sort::named(sort)?,
            number: number.parse().ok()?,
            capacity: capacity.parse().ok()?,
        }),
        ("holds", [token, weight, deadline]) => What::Holds {
            token: token.parse().ok()?,
            weight: weight.parse().ok()?,
            deadline: deadline.parse().ok()?,
        },
        ("keeps", [deadline]) => What::Keeps { deadline: deadline.parse().ok()? },
        ("ends", [until, how]) => {
            let how =
                [End::Released, End::Dropped, End::Lost].into_iter().find(|end| end.to_string() == *how);
            What::Ends { until: until.parse().ok()?, how: how? }
        }
        ("leaves", [""]) => What::Leaves,
        ("lives", [""]) => What::Lives,
        ("fails", _) => What::Fails(rest?.to_owned()),
        ("wrong", _) => What::Wrong(rest?.to_owned()),
        _ => return None,
    };
    Some(Line { time, task, what })
}

#[cfg(test)]
mod tests {
    use tenure_testkit::fuzz::fuzz;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for what in [
            What::Asks(Lock { sort: Sort::Semaphore, number: 3, capacity: 5 }),
            What::Holds { token: u64::MAX, weight: 9, deadline: 7 },
            What::Keeps { deadline: 8 },
            What::Ends { until: 5, how: End::Lost },
            What::Leaves,
            What::Fails("cannot ask: no route".into()),
            What::Wrong(String::new()),
            What::Lives,
        ] {
            let line = Line { time: 12, task: 4, what };
            assert_eq!(read(&line.to_string()), Some(line));
        }
    }

    #[test]
    fn an_error_of_several_lines_is_one_line() {
        let line = Line { time: 1, task: 2, what: What::Fails("one\ntwo".into()) };
        assert_eq!(line.to_string(), "1 2 fails one two");
    }

    #[test]
    fn whatever_is_read_is_written_so() {
        let words = ["asks", "holds", "keeps", "ends", "leaves", "fails", "wrong", "lives", "released", " "];
        fuzz("history", &[], &words, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let Some(line) = read(&text) else { return "none".into() };
            assert_eq!(read(&line.to_string()).map(|line| line.to_string()), Some(line.to_string()));
            format!("{:?}", line.what).split([' ', '(']).next().unwrap_or_default().to_owned()
        });
    }

    #[test]
    fn what_nobody_writes_is_no_line() {
        for text in [
            "",
            "1",
            "1 2",
            "1 2 sings",
            "x 2 lives",
            "1 2 leaves now",
            "1 2 ends 3 killed",
            "1 2 asks umbrella 1 1",
            "1 2 asks mutex 1",
            "1 2 holds 1 2",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
