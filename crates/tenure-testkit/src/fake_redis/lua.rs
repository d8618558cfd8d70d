//! Scripts as a server runs them: Lua 5.1 with `KEYS`, `ARGV`, `redis.call`, `redis.pcall`, and the server's
//! conversion rules between Lua values and replies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mlua::{Error, Function, Lua, MultiValue, Table};
use redis::Value;

use super::data::Database;
use super::{error, message};

/// The interpreter, with a cache of compiled scripts.
pub(super) struct Scripts {
    lua: Lua,
    compiled: Mutex<BTreeMap<String, Function>>,
}

impl Scripts {
    pub(super) fn new(database: &Arc<Mutex<Database>>) -> Self {
        let lua = Lua::new();
        let call = |raises: bool| {
            let database = Arc::clone(database);
            lua.create_function(move |lua, words: MultiValue| {
                let words: Vec<Vec<u8>> = words.iter().map(word).collect::<Result<_, _>>()?;
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                match database.lock().unwrap_or_else(PoisonError::into_inner).run(&words) {
                    Value::ServerError(error) if raises => Err(Error::runtime(message(&error))),
                    value => to_lua(lua, value),
                }
            })
            .expect("a function")
        };
        let redis = lua.create_table().expect("a table");
        redis.set("call", call(true)).expect("a table");
        redis.set("pcall", call(false)).expect("a table");
        lua.globals().set("redis", redis).expect("globals");
        Self { lua, compiled: Mutex::default() }
    }

    pub(super) fn run(&self, text: &str, keys: &[&str], args: &[&str]) -> Value {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let script = compiled.entry(text.to_owned()).or_insert_with(|| {
            self.lua.load(text).into_function().unwrap_or_else(|error| panic!("no script: {error}"))
        });
        let list = |words: &[&str]| self.lua.create_sequence_from(words.iter().copied()).expect("a table");
        self.lua.globals().set("KEYS", list(keys)).expect("globals");
        self.lua.globals().set("ARGV", list(args)).expect("globals");
        match script.call::<mlua::Value>(()) {
            Ok(value) => from_lua(&value),
            Err(Error::CallbackError { cause, .. }) => error(&cause.to_string()),
            Err(failure) => error(&format!("ERR {failure}")),
        }
    }
}

/// Converts a Lua value to a command argument.
fn word(value: &mlua::Value) -> Result<Vec<u8>, Error> {
    match value {
        mlua::Value::String(text) => Ok(text.as_bytes().to_vec()),
        mlua::Value::Integer(number) => Ok(number.to_string().into_bytes()),
        mlua::Value::Number(number) => Ok(seventeen(*number).into_bytes()),
        _ => Err(Error::runtime("ERR Lua redis lib command arguments must be strings or integers")),
    }
}

/// Formats like `%.17g`, for whole numbers and small fractions only.
pub(super) fn seventeen(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e17 { format!("{number:.0}") } else { format!("{number}") }
}

fn to_lua(lua: &Lua, value: Value) -> Result<mlua::Value, Error> {
    let table = |field: &str, text: String| -> Result<mlua::Value, Error> {
        let table = lua.create_table()?;
        table.set(field, text)?;
        Ok(mlua::Value::Table(table))
    };
    Ok(match value {
        Value::Nil => mlua::Value::Boolean(false),
        Value::Int(number) => mlua::Value::Number(number as f64),
        Value::BulkString(bytes) => mlua::Value::String(lua.create_string(bytes)?),
        Value::Array(values) => {
            let table = lua.create_table_with_capacity(values.len(), 0)?;
            for (index, value) in values.into_iter().enumerate() {
                table.raw_set(index + 1, to_lua(lua, value)?)?;
            }
            mlua::Value::Table(table)
        }
        Value::Okay => table("ok", "OK".to_owned())?,
        Value::SimpleString(text) => table("ok", text)?,
        Value::ServerError(error) => table("err", message(&error))?,
        other => return Err(Error::runtime(format!("no command answers {other:?}"))),
    })
}

fn from_lua(value: &mlua::Value) -> Value {
    match value {
        mlua::Value::Boolean(true) => Value::Int(1),
        mlua::Value::Integer(number) => Value::Int(*number),
        // Truncated, as on a server.
        mlua::Value::Number(number) => Value::Int(*number as i64),
        mlua::Value::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        mlua::Value::Table(table) => from_table(table),
        _ => Value::Nil,
    }
}

fn from_table(table: &Table) -> Value {
    let field = |name: &str| table.raw_get::<Option<String>>(name).ok().flatten();
    if let Some(text) = field("err") {
        return error(&text);
    }
    if let Some(status) = field("ok") {
        return Value::SimpleString(status);
    }
    let mut values = Vec::new();
    for index in 1.. {
        match table.raw_get::<mlua::Value>(index) {
            Ok(mlua::Value::Nil) | Err(_) => break,
            Ok(value) => values.push(from_lua(&value)),
        }
    }
    Value::Array(values)
}
