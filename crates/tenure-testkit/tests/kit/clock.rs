//! Clocks of the simulation.

use tenure_testkit::sim::clock::Clock;

#[test]
fn a_timer_fires_at_the_first_moment_its_clock_has_reached() {
    for ppm in [-5_000, -1, 0, 1, 5_000] {
        let clock = Clock { offset: 123_456_789, ppm };
        for shown in [123_456_789, 123_456_790, 200_000_001, 90_000_000_003] {
            let at = clock.when(shown);
            assert!(clock.shows(at) >= shown, "{ppm} {shown}");
            assert!(at == 0 || clock.shows(at - 1) < shown, "{ppm} {shown}");
        }
    }
}
