//! The tests are in `tests/it`, in a separate package so that only the library under test is optimised.
