//! The extension module of the Python package `tenure`.
//!
//! It is thin: [`op`] runs the futures of the library, on a blocked thread or in an event loop; [`locks`],
//! [`guard`] and [`uses`] make futures of its methods; [`block`] ends `with` blocks; [`process`] keeps a fork apart from its parent. What
//! makes the package Pythonic is written in Python, in `python/tenure`.

mod block;
#[cfg(feature = "redis")]
mod credentials;
mod error;
mod events;
mod fill;
mod guard;
mod locks;
mod op;
mod process;
mod question;
mod reactor;
#[cfg(feature = "testing")]
mod testing;
mod uses;
mod values;

use pyo3::prelude::*;

/// The extension of `tenure`: use the package instead.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::block::{Blocks, granted};
    #[pymodule_export]
    use super::events::set_log_level;
    #[pymodule_export]
    use super::fill::Fill;
    #[pymodule_export]
    use super::guard::{Hold, Loss};
    #[pymodule_export]
    use super::locks::{Lock, Locked, Locks, new_owner};
    #[pymodule_export]
    use super::op::Op;
    #[pymodule_export]
    use super::process::{close, forked, take_inherited_files};
    #[pymodule_export]
    use super::reactor::Reactor;
    #[cfg(feature = "testing")]
    #[pymodule_export]
    use super::testing::{Control, Elsewhere, testing_store};
    #[pymodule_export]
    use super::uses::{Cache, Candidacy, Changes, Election, OncePer, Stop};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::events::install();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
