//! The alert rules and the metrics, by the tool of Prometheus.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tenure::metrics::Groups;
use tenure::{Locks, block_on};

use crate::env::TestEnv;
use crate::serve::{get, serve};

fn promtool(directory: &Path, arguments: &[&str], input: &str) {
    let mut tool = Command::new("promtool");
    tool.args(arguments).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running =
        tool.stderr(Stdio::piped()).spawn().expect("promtool, which scripts/install-test-needs installs");
    running.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let said = running.wait_with_output().expect("it ends");
    let text = [said.stdout, said.stderr].concat();
    assert!(said.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
}

fn packaged() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus")
}

/// All words that begin like a metric.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    words.filter(|word| word.starts_with("tenure_")).collect()
}

#[test]
fn each_alert_fires_in_its_bad_history_only() {
    promtool(&packaged(), &["check", "rules", "tenure.rules.yml"], "");
    promtool(&packaged(), &["test", "rules", "tenure.rules.test.yml"], "");
    let read = |file: &str| fs::read_to_string(packaged().join(file)).expect("a file");
    let (rules, tests) = (read("tenure.rules.yml"), read("tenure.rules.test.yml"));
    let names = |text: &str, before: &str| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(before));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(names(&rules, "alert: "), names(&tests, "alertname: "));
}

/// Whether the metrics of `tenure serve` on this store are well formed, and these alerts, with their labels, fire on
/// them if they stay for ten minutes.
pub(crate) fn alerts_are(env: &TestEnv, url: &str, firing: &[&str]) {
    let (server, at) = serve(env, &["--store", url]);
    let mut served = String::new();
    // A refresh that takes long on a busy machine is no silence of the store.
    server.eventually("the store answers", || {
        served = get(&at, "/metrics");
        served.lines().any(|line| line == "tenure_up 1")
    });
    promtool(&packaged(), &["check", "metrics"], &served);
    let rules = packaged().join("tenure.rules.yml").canonicalize().expect("the rules");
    let mut test = format!("rule_files: [{rules:?}]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n");
    test += "  input_series:\n";
    for (series, value) in served.lines().filter_map(|line| line.strip_prefix("tenure_")?.rsplit_once(' ')) {
        let _ = writeln!(test, "  - series: 'tenure_{series}'\n    values: '{value}x10'");
    }
    test += "  promql_expr_test:\n  - expr: ALERTS{alertstate=\"firing\"}\n    eval_time: 10m\n    exp_samples:\n";
    for labels in firing {
        let _ = writeln!(test, "    - labels: 'ALERTS{{alertstate=\"firing\",{labels}}}'\n      value: 1");
    }
    let file = env.path("alerts.yml");
    fs::write(&file, test).expect("a file");
    promtool(&packaged(), &["test", "rules", file.to_str().expect("UTF-8")], "");
}

#[test]
fn metrics_are_well_formed_and_the_rules_ask_for_those_that_exist() {
    let env = TestEnv::shared();
    env.tenure_run(["--once-per", "1d", "digest", "-c", "exit 3"]).exits_with(3);
    let leader = env.start(env.tenure([
        "elect",
        "--store",
        &env.url(),
        "api",
        "--",
        "sh",
        "-c",
        "touch leads; exec sleep 60",
    ]));
    leader.eventually("it leads", || env.path("leads").exists());
    let _held = env.start_script(&[], "x", "READY; exec sleep 100");
    let (_server, at) = serve(&env, &[]);
    let served = get(&at, "/metrics");
    promtool(&packaged(), &["check", "metrics"], &served);

    let locks = Locks::memory().with(|options| options.groups(Groups::by_prefix(':'))).expect("options");
    block_on(async {
        locks.mutex("a:1")?.lock().await?.release().await?;
        locks.once_per("j:1", std::time::Duration::from_secs(60))?.run(async |_| Ok::<_, String>(())).await?;
        locks.election("e:1", "here")?.campaign().await?.resign().await
    })
    .expect("an answer");
    let own = locks.metrics().to_prometheus();
    promtool(&packaged(), &["check", "metrics"], &own);

    let known: BTreeSet<&str> = metrics_in(&served).union(&metrics_in(&own)).copied().collect();
    let rules = fs::read_to_string(packaged().join("tenure.rules.yml")).expect("the rules");
    let asked = metrics_in(&rules);
    assert!(asked.len() >= 10, "{asked:?}");
    assert!(asked.is_subset(&known), "{:?}", asked.difference(&known));
}
