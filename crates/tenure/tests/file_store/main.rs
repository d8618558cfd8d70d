//! The file store with real processes, damaged files and unusable directories. A test that needs another
//! process starts this program again, with a role in its environment: see `process::role`.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "real processes take real time")]
#![expect(clippy::zombie_processes, reason = "some children are to outlive their parent")]

mod calls;
mod client;
mod contract;
#[cfg(tenure_planted)]
mod crash_points;
mod crashes;
mod crowds;
mod damage;
mod directories;
mod process;
mod queues;
mod turns;

use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures_util::future::{Either, FutureExt, select};
use tempfile::TempDir;
use tenure::internals::protocol::{
    Answer, Fence, Found, Kind, Listening, Liveness, LockSpec, Notification, Op, Place, QueueSpec,
    ReleaseScope, Verb,
};
use tenure::internals::store::file::File;
use tenure::internals::store::{Cursor, Failure, Listener, Purpose, StoreExt, Topic};
use tenure::internals::{Driver, Runtime, Store};
use tenure::{LockName, Locks, Options, Owner, block_on};

use client::*;
use process::*;

const SECOND: Duration = Duration::from_secs(1);
/// A lease that outlasts any test, so whatever becomes free did so for another reason.
const LONG_MS: u64 = 600_000;
const FAIR: LockSpec = LockSpec::Queue(QueueSpec::FAIR);
const READER: LockSpec = LockSpec::Queue(QueueSpec::READER);
const WRITER: LockSpec = LockSpec::Queue(QueueSpec::WRITER);
const TWO_OF_FIVE: LockSpec = LockSpec::Queue(QueueSpec::permits(5, 2));
