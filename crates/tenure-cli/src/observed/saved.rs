//! A history as JSON, so that it survives a restart.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::{End, History, Hold, Observed};

const ENDS: [End; 3] = [End::Released, End::HandedOver, End::Expired];

impl Observed {
    /// All histories.
    pub(crate) fn saved(&self) -> Value {
        let hold = |hold: &Hold| {
            json!({
                "who": hold.who,
                "token": hold.token,
                "from_us": us(hold.from),
                "to_us": hold.end.map(|(end, _)| us(end)),
                "end": hold.end.map(|(_, how)| how.to_string()),
                "until_us": hold.until.map(us),
                "lease_us": us(hold.lease),
                "changed_us": us(hold.changed),
            })
        };
        let history = |(name, history): (&str, &History)| {
            json!({
                "name": name,
                "kind": history.kind,
                "holds": history.holds.iter().map(hold).collect::<Vec<_>>(),
                "waits": history.waits.iter().map(|(at, count)| json!([us(*at), count])).collect::<Vec<_>>(),
            })
        };
        json!({
            "since_us": self.since.map(us),
            "looked_us": us(self.looked_at),
            "handovers": self.handovers_total,
            "histories": self.histories().map(history).collect::<Vec<_>>(),
        })
    }

    /// The histories that were saved; `None` if this is something else. What happened since then is what the next
    /// scan finds changed.
    pub(crate) fn restored(saved: &Value) -> Option<Self> {
        let hold = |saved: &Value| {
            let how = saved["end"].as_str().map(|how| ENDS.into_iter().find(|end| end.to_string() == how));
            let end = match (time(&saved["to_us"]), how) {
                (Some(to), Some(how)) => Some((to, how?)),
                _ => None,
            };
            Some(Hold {
                who: saved["who"].as_str()?.to_owned(),
                token: saved["token"].as_u64()?,
                from: time(&saved["from_us"])?,
                end,
                until: time(&saved["until_us"]),
                lease: time(&saved["lease_us"])?,
                changed: time(&saved["changed_us"])?,
            })
        };
        let wait = |saved: &Value| Some((time(&saved[0])?, saved[1].as_u64()));
        let history = |saved: &Value| {
            let holds = saved["holds"].as_array()?.iter().map(hold).collect::<Option<VecDeque<_>>>()?;
            let waits = saved["waits"].as_array()?.iter().map(wait).collect::<Option<VecDeque<_>>>()?;
            let kind = saved["kind"].as_str()?.to_owned();
            Some((saved["name"].as_str()?.to_owned(), History { kind, holds, waits }))
        };
        Some(Self {
            since: time(&saved["since_us"]),
            looked_at: time(&saved["looked_us"])?,
            handovers_total: saved["handovers"].as_u64()?,
            histories: saved["histories"].as_array()?.iter().map(history).collect::<Option<_>>()?,
            ..Self::default()
        })
    }
}

fn us(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn time(saved: &Value) -> Option<Duration> {
    saved.as_u64().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Party, Row};

    #[test]
    fn a_history_goes_on_after_a_restart() {
        let row = |token| Row {
            name: "a".into(),
            kind: "mutex".into(),
            holders: vec![Party { token, left: Some(Duration::from_secs(15)), ..Party::default() }],
            waiting: Some(token),
            ..Row::default()
        };
        let at = Duration::from_secs;
        let mut seen = Observed::default();
        seen.looked(Ok(vec![row(1)]), at(100), Duration::ZERO);
        seen.looked(Ok(vec![row(2)]), at(105), Duration::ZERO);
        let mut restored = Observed::restored(&seen.saved()).expect("a history");
        assert_eq!(restored.saved(), seen.saved());
        for seen in [&mut seen, &mut restored] {
            seen.looked(Ok(vec![row(3)]), at(110), Duration::ZERO);
        }
        assert_eq!(restored.saved(), seen.saved());
        assert_eq!(restored.history("a").expect("a history").holds.len(), 3);
        assert!(Observed::restored(&json!({ "histories": [] })).is_none());
    }
}
