//! Refuses an interpreter whose layouts this build does not know: strs, tuples and ints are read in place.
//!
//! The stable ABI reads them by calls, and works with every later version.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// A minor version of CPython 3.
type Minor = u8;

/// The version that this was built for; 0 under the stable ABI and on other implementations.
const BUILT_FOR: Minor = match () {
    () if cfg!(any(Py_LIMITED_API, PyPy, GraalPy)) => 0,
    () if cfg!(Py_3_15) => 15,
    () if cfg!(Py_3_14) => 14,
    () if cfg!(Py_3_13) => 13,
    () if cfg!(Py_3_12) => 12,
    () if cfg!(Py_3_11) => 11,
    () => 10,
};

/// The newest version that the tests have run on.
const NEWEST: Minor = 15;

/// Refuses another version than the one that this was built for, and one that no test has run on.
///
/// # Errors
/// `ImportError`.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    match refusal(BUILT_FOR, py.version_info().minor) {
        None => Ok(()),
        Some(why) => Err(PyImportError::new_err(why)),
    }
}

fn refusal(built_for: Minor, running: Minor) -> Option<String> {
    match built_for {
        0 => None,
        _ if running > NEWEST => Some(format!(
            "this is CPython 3.{running}, and cai_dlpack knows the objects of versions up to 3.{NEWEST}: build it \
             with the feature abi3, which works with later ones"
        )),
        _ if running != built_for => Some(format!(
            "this is CPython 3.{running}, and this cai_dlpack was built for 3.{built_for}: build it for this version"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_taken_if_it_was_built_for_and_tested() {
        for built_for in 10..=20 {
            for running in 10..=20 {
                let is_taken = refusal(built_for, running).is_none();
                assert_eq!(
                    is_taken,
                    running == built_for && running <= 15,
                    "{built_for} on {running}"
                );
            }
        }
    }

    #[test]
    fn the_stable_abi_works_with_every_version() {
        assert!((12..=30).all(|running| refusal(0, running).is_none()));
    }
}
