//! Passes the commit that the command is built from to `src/version.rs`, where it is known.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TENURE_COMMIT");
    let commit = std::env::var("TENURE_COMMIT").ok().or_else(of_package).or_else(of_repository);
    println!("cargo::rustc-env=TENURE_COMMIT={}", commit.unwrap_or_default());
}

/// What Cargo wrote into a published package, which may lie in a repository of somebody else.
fn of_package() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let hash = info.split_once("\"sha1\":")?.1.split('"').nth(1)?;
    Some(hash.chars().take(8).collect())
}

fn of_repository() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // The branch may have no file of its own, and then Cargo would run this each time.
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"])?;
    for name in ["HEAD", &branch] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if std::fs::exists(&path).is_ok_and(|exists| exists) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=8", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
