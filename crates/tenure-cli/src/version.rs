//! The version of this program: what `tenure --version` prints after the name.

use std::path::Path;
use std::process::{Command, Stdio};

use tenure::diagnosis::{DIRECTORY_FORMAT, FORMAT};

use crate::exit::{Failure, USAGE};

/// Like `0.1.0 (2f33a816, formats 1; directory 4)`. The commit is left out where it is unknown.
pub(crate) fn own() -> String {
    let commit = match env!("TENURE_COMMIT") {
        "" => String::new(),
        commit => format!("{commit}, "),
    };
    format!("{} ({commit}formats {FORMAT}; directory {DIRECTORY_FORMAT})", tenure::VERSION)
}

/// Asks another program, which must be tenure.
pub(crate) fn of(program: &Path) -> Result<String, Failure> {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let said =
        said.map_err(|error| Failure::new(USAGE, format!("cannot run {}: {error}", program.display())))?;
    let version = String::from_utf8_lossy(&said.stdout);
    match version.strip_prefix("tenure ") {
        Some(version) if said.status.success() => Ok(version.trim().to_owned()),
        _ => Err(Failure::new(
            USAGE,
            format!("{} is not tenure: its --version prints no version", program.display()),
        )),
    }
}
