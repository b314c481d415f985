//! Notes what an import does while it is tried for `explain`. An import that is not tried notes nothing.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::python::call::options::Options;

/// The notes of an import that is tried.
#[derive(Default)]
pub(super) struct Notes {
    /// The address of the object that is imported.
    object: usize,
    pub(super) is_asked: bool,
    pub(super) by_array_interface: bool,
    /// The device for which `__dlpack__` was not called.
    pub(super) unasked: Option<Device>,
}

thread_local! {
    /// The trials of this thread, the innermost last. Greenlets begin and end theirs in any order.
    static TRIALS: RefCell<Vec<(u64, Notes)>> = const { RefCell::new(Vec::new()) };
}

/// Runs an import that notes what it does with `object`.
pub(super) fn noting<R>(object: &Bound<'_, PyAny>, body: impl FnOnce() -> R) -> (R, Notes) {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    /// Of this trial, which is over when it is dropped, also after a panic.
    struct Trial(u64);
    impl Trial {
        fn end(&self) -> Option<Notes> {
            TRIALS.with_borrow_mut(|trials| {
                let at = trials.iter().position(|(number, _)| *number == self.0);
                at.map(|at| trials.remove(at).1)
            })
        }
    }
    impl Drop for Trial {
        fn drop(&mut self) {
            self.end();
        }
    }
    let trial = Trial(NUMBERS.fetch_add(1, Ordering::Relaxed));
    let notes = Notes {
        object: object.as_ptr().addr(),
        ..Notes::default()
    };
    TRIALS.with_borrow_mut(|trials| trials.push((trial.0, notes)));
    let result = body();
    let notes = trial.end().unwrap_or_default();
    (result, notes)
}

/// Changes the notes of the innermost trial of `object`, if it is tried.
fn note(object: &Bound<'_, PyAny>, change: impl FnOnce(&mut Notes)) {
    let object = object.as_ptr().addr();
    TRIALS.with_borrow_mut(|trials| {
        let mut notes = trials.iter_mut().rev().map(|(_, notes)| notes);
        notes.find(|notes| notes.object == object).map(change);
    });
}

/// Notes that the array comes by `__array_interface__`.
pub(crate) fn note_array_interface(object: &Bound<'_, PyAny>) {
    note(object, |notes| notes.by_array_interface = true);
}

/// Notes that `__dlpack__` is called, or ends the trial if that `waits`: it would make a stream wait.
///
/// # Errors
/// The refusal of the announced device, whatever is exported; an error that ends the trial.
pub(super) fn ask(
    object: &Bound<'_, PyAny>,
    device: Device,
    waits: bool,
    options: &Options<'_, '_>,
) -> PyResult<()> {
    if !waits {
        note(object, |notes| notes.is_asked = true);
        return Ok(());
    }
    options.check_device(device)?;
    note(object, |notes| notes.unasked = Some(device));
    Err(PyRuntimeError::new_err("__dlpack__ is not called"))
}
