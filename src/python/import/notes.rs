//! Notes what an import does while it is tried for `explain`. An import that is not tried notes nothing.

use std::cell::RefCell;

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
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

/// Runs an import that notes what it does with `object`.
pub(super) fn noting<R>(object: &Bound<'_, PyAny>, body: impl FnOnce() -> R) -> (R, Notes) {
    /// Puts back the notes of the trial that this one runs in, also after a panic.
    struct Restore(Option<Notes>);
    impl Drop for Restore {
        fn drop(&mut self) {
            NOTES.set(self.0.take());
        }
    }
    let notes = Notes {
        object: object.as_ptr().addr(),
        ..Notes::default()
    };
    let restore = Restore(NOTES.replace(Some(notes)));
    let result = body();
    let notes = NOTES.take().unwrap_or_default();
    drop(restore);
    (result, notes)
}

/// Changes the notes, if `object` is what is tried.
fn note(object: &Bound<'_, PyAny>, change: impl FnOnce(&mut Notes)) {
    NOTES.with_borrow_mut(|notes| match notes {
        Some(notes) if notes.object == object.as_ptr().addr() => change(notes),
        _ => {}
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
