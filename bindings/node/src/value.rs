//! What calls return, on the thread that may make JavaScript's values of it. Times are milliseconds since 1970,
//! durations milliseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use napi::Env;
use napi::bindgen_prelude::{BigInt, Buffer, JsObjectValue, Null, Object, ToNapiValue, Unknown};
use tenure::bindings::Report;

use crate::hold::Hold;

pub enum Value {
    Report(Report),
    Hold(Box<Hold>),
}

impl Value {
    pub const NULL: Self = Self::Report(Report::Null);

    pub fn of(report: impl Into<Report>) -> Self {
        Self::Report(report.into())
    }

    pub fn into_js(self, env: &Env) -> napi::Result<Unknown<'_>> {
        match self {
            Self::Report(report) => into_js(report, env),
            Self::Hold(hold) => hold.into_unknown(env),
        }
    }
}

fn into_js(report: Report, env: &Env) -> napi::Result<Unknown<'_>> {
    match report {
        Report::Null => Null.into_unknown(env),
        Report::Flag(flag) => flag.into_unknown(env),
        Report::Number(number) => number.into_unknown(env),
        Report::Token(token) => BigInt::from(token).into_unknown(env),
        Report::Text(text) => text.into_unknown(env),
        Report::Bytes(bytes) => Buffer::from(bytes).into_unknown(env),
        Report::Duration(duration) => millis(duration).into_unknown(env),
        Report::Time(time) => since_1970(time).into_unknown(env),
        Report::List(values) => {
            let mut list = env.create_array(values.len() as u32)?;
            for (at, value) in values.into_iter().enumerate() {
                list.set(at as u32, into_js(value, env)?)?;
            }
            list.into_unknown(env)
        }
        Report::Object(fields) => {
            let mut object = Object::new(env)?;
            for (name, value) in fields {
                let name = if name == "is_open" { "isOpen" } else { name };
                object.set_named_property(name, into_js(value, env)?)?;
            }
            object.into_unknown(env)
        }
    }
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

pub fn since_1970(time: SystemTime) -> f64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
