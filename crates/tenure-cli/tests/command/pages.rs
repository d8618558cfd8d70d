//! Completions and manual pages.

use std::process::Command;

use crate::env::TestEnv;

/// The verbs listed by `--help`.
fn verbs(env: &TestEnv) -> Vec<String> {
    let help = env.run(env.tenure(["--help"])).exits_with(0).stdout;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let verbs = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
    verbs.map(|line| line.split_whitespace().next().expect("a verb").to_owned()).collect()
}

#[test]
fn each_shell_gets_completions_and_bash_completes_verbs_and_flags_with_them() {
    let env = TestEnv::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = env.run(env.tenure(["completions", shell])).exits_with(0).says_nothing().stdout;
        assert!(text.contains("once-per"), "{shell}");
        assert!(!text.contains("__keep"), "{shell}");
    }
    std::fs::write(env.path("complete"), env.run(env.tenure(["completions", "bash"])).stdout)
        .expect("a file");
    for (words, expected) in [("tenure doc", "doctor"), ("tenure run --once", "--once-per")] {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _tenure tenure \"${{COMP_WORDS[COMP_CWORD]}}\" ''; echo \"${{COMPREPLY[*]}}\"",
            env.path("complete").display()
        );
        let said = Command::new("bash").args(["-c", &script]).output().expect("bash");
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), expected, "{said:?}");
    }
    env.run(env.tenure(["completions", "tcsh"])).exits_with(64).says_among_others("tcsh");
}

#[test]
fn each_verb_has_a_manual_page() {
    let env = TestEnv::new();
    let page =
        |args: &[&str]| env.run(env.tenure([&["man"], args].concat())).exits_with(0).says_nothing().stdout;
    let verbs = verbs(&env);
    assert!(verbs.len() >= 12, "{verbs:?}");
    let whole = page(&[]);
    for verb in verbs.iter().filter(|verb| *verb != "help") {
        assert!(whole.contains(&format!("tenure\\-{verb}")), "{verb}: {whole}");
        let text = page(&[verb]);
        assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH OPTIONS"), "{verb}: {text}");
    }
    let run = page(&["run"]);
    for words in ["Exit status:", "TENURE_FENCE", "once\\-per"] {
        assert!(run.contains(words), "{words}: {run}");
    }
    env.run(env.tenure(["man", "rnu"])).exits_with(64).says("expected one of run, ");
}

#[test]
fn the_help_of_each_verb_ends_with_examples() {
    let env = TestEnv::new();
    for verb in verbs(&env).iter().filter(|verb| *verb != "help") {
        let help = env.run(env.tenure([verb, "--help"])).exits_with(0).says_nothing().stdout;
        let (_, examples) = help.rsplit_once("\nExamples:\n").unwrap_or_else(|| panic!("{verb}: {help}"));
        let call = format!("tenure {verb} ");
        assert!(examples.contains(&call) || examples.trim().ends_with(call.trim()), "{verb}: {examples}");
        assert!(examples.lines().all(|line| line.is_empty() || line.starts_with("  ")), "{verb}: {examples}");
    }
}
