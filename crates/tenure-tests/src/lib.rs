//! The tests are in `tests/it`. A package of their own, so that only the library under test is
//! built with optimisations.
