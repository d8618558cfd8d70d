#![allow(clippy::all, clippy::disallowed_methods, missing_docs)]
use tenure_testkit::sim::world::*;
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    if a.len() == 1 { let r = replay(a[0]); println!("{}", r.trace()); println!("{:?}", r.violation); return; }
    let mut bad = 0;
    for seed in (a[0]..a[1]).step_by(a.get(2).copied().unwrap_or(1) as usize) {
        let t = std::time::Instant::now();
        let r = run(seed);
        let us = t.elapsed().as_micros();
        if let Some(v) = &r.violation { bad += 1; if bad < 60 { println!("seed {seed} {:?} steps {} : {v}", r.plan.regime, r.steps); } }
        if us > 20000 { println!("SLOW seed {seed} {:?} {us} us steps {} ", r.plan.regime, r.steps); }
    }
    println!("bad {bad}");
}
