//! The addon of the Node package `tenure`.
//!
//! It is thin: [`channel`] runs the futures of the library on the one runtime of [`engine`], and hands their
//! results to JavaScript, many at a time; [`store`], [`hold`] and [`uses`] make futures of the library's methods.
//! What makes the package a JavaScript one is written in TypeScript, in `ts`.

mod channel;
mod engine;
mod error;
mod events;
mod hold;
mod kinds;
#[cfg(unix)]
mod signals;
mod store;
mod uses;
mod value;
