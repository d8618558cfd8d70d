//! Replayed choices are the recorded ones.

use tenure_testkit::sim::chooser::{Chooser, next_in_order};

#[test]
fn a_replay_makes_the_choices_that_were_made() {
    let mut first = Chooser::seeded(7);
    let chosen: Vec<u32> = (1..50).map(|among| first.choose(among)).collect();
    let recorded = first.made().iter().map(|choice| choice.chosen).collect();
    let mut second = Chooser::replay(recorded);
    assert_eq!((1..50).map(|among| second.choose(among)).collect::<Vec<_>>(), chosen);
}

#[test]
fn the_walk_in_order_visits_every_combination_once() {
    let mut seen = Vec::new();
    let mut next = Some(Vec::new());
    while let Some(choices) = next {
        let mut chooser = Chooser::replay(choices);
        // How many possibilities the second choice has depends on the first.
        let first = chooser.choose(3);
        seen.push((first, chooser.choose(first + 1)));
        next = next_in_order(chooser.made());
    }
    assert_eq!(seen, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]);
}
