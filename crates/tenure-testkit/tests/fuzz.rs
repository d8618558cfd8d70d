//! The fuzzer finds planted defects within its limits.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tenure_testkit::fuzz::{MEMORY, bound_memory, fuzz, kept};

fn finds(defect: impl Fn(&str) -> bool) -> bool {
    let check = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        assert!(!defect(&text), "planted");
        format!("{} words", "*".repeat(text.split(' ').count().min(9)))
    };
    catch_unwind(AssertUnwindSafe(|| fuzz("planted", &["held 17", "free"], &["held", " "], check))).is_err()
}

#[test]
fn a_planted_defect_is_found() {
    assert!(finds(|text| text.split(' ').any(|word| word == "18446744073709551616")));
    assert!(finds(|text| text.split(' ').count() > 6));
    assert!(finds(|text| text.starts_with("freeheld")));
    assert!(!finds(|_| false));
}

#[test]
fn no_file_of_the_corpus_is_left_out() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let names = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect()
    };
    let targets = names(&corpus);
    assert!(!targets.is_empty());
    for target in targets {
        let (files, target) = (names(&corpus.join(&target)).len(), target.to_string_lossy());
        assert!(files > 0 && kept(&target).len() == files, "{target}: {files} files");
    }
}

#[test]
fn what_takes_more_memory_than_anything_needs_ends_the_process() {
    if std::env::var_os("TENURE_FUZZ_GREEDY").is_some() {
        bound_memory();
        println!("{}", vec![1_u8; 2 * MEMORY as usize].len());
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    let name = "what_takes_more_memory_than_anything_needs_ends_the_process";
    command.args(["--exact", name]).env("TENURE_FUZZ_GREEDY", "1");
    let output = command.output().expect("a process");
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("memory allocation"), "{output:?}");
}
