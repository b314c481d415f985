//! Default streams by their number: whether that means the stream here, and what keeps its context.

use super::super::streams::{Kept, Placed, is_elsewhere};
use super::super::{CaiView, detach, with_driver};
use crate::driver::{Context, Defaults, DriverError, KeptPrimary, UNTOLD, driver};
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;

/// Checks that the number of a default stream of `view`, placed so, means that stream to the memory of `array`.
///
/// # Errors
/// `stream-thread`, `stream-context`, or the driver's refusal.
#[cold]
pub(super) fn check_named(array: &CaiView, view: &CaiView, placed: Placed) -> Result<(), Error> {
    let refused = |rule| Violation::new(rule, Field::Argument("stream"), placed.stream);
    if is_elsewhere(placed.thread) {
        let hint = "the view is ready on another thread's; pass a stream with a handle";
        return Err(refused(Rule::StreamThread).with_hint(hint).into());
    }
    let here = array.placed(placed.stream)?.whose;
    let named = |view: &CaiView| (view.device(), view.descriptor().data());
    if here == placed.whose && named(array) == named(view) {
        return Ok(());
    }
    let hint = "its number means that of another context here; pass a stream with a handle";
    match (context_of(view, placed.whose), context_of(array, here)) {
        (Ok(theirs), Ok(ours)) if theirs == ours => Ok(()),
        (Ok(_), Ok(_)) => Err(refused(Rule::StreamContext).with_hint(hint).into()),
        // Without a driver nothing is pending on either.
        (Err(absent), _) if absent.is_absent() => Ok(()),
        (Err(refused), _) | (_, Err(refused)) => Err(refused.into()),
    }
}

/// Whether a default stream of `view`, placed so, is of this context.
///
/// # Errors
/// The driver's refusal.
#[cold]
pub(super) fn is_of(view: &CaiView, named: Placed, context: Context) -> Result<bool, DriverError> {
    Ok(context_of(view, named.whose)? == context)
}

fn context_of(view: &CaiView, whose: Defaults) -> Result<Context, DriverError> {
    match whose {
        Defaults::Of(context) => Ok(context),
        Defaults::Untold => Err(UNTOLD),
        _ => view.context_by(view.device()),
    }
}

/// Returns what keeps `context` beside the owner of `array`, which keeps that of the memory: a primary one itself, else `other`.
///
/// # Errors
/// The driver's refusal; those of `other`.
#[cold]
pub(super) fn keep(
    array: &CaiView,
    context: Context,
    other: impl FnOnce() -> Result<Option<Kept>, Error>,
) -> Result<Option<Kept>, Error> {
    let data = array.descriptor().data();
    let found = with_driver(|driver| {
        let is_memorys = data != 0 && driver.pointer_info(data, false)?.context == Some(context);
        match is_memorys {
            true => Ok(None),
            false => KeptPrimary::of_context(driver, context).map(Some),
        }
    });
    match found.map_err(|refused: DriverError| Error::from(refused))? {
        None => Ok(None),
        Some(None) => other(),
        Some(Some(primary)) => Ok(Some(Kept::of_primary(primary))),
    }
}

/// Checks that the current context, if there is one, has not been destroyed.
#[cold]
pub(super) fn check_current() -> Result<(), Error> {
    Ok(with_driver(|driver| match driver.current_context()? {
        Some(_) => driver.current_device().map(drop),
        None => Ok::<_, DriverError>(()),
    })?)
}

/// Refuses a constant for a default stream of a context that nothing is known to keep.
#[cold]
pub(super) fn refuse(stream: Stream) -> Result<Option<Kept>, Error> {
    let refused = Violation::new(Rule::StreamContext, Field::Argument("stream"), stream);
    let hint = "its context is neither a primary one nor the memory's; pass a stream with a handle";
    Err(refused.with_hint(hint).into())
}

impl Kept {
    /// Keeps a primary context.
    pub(in crate::view) fn of_primary(primary: KeptPrimary) -> Self {
        Self::by(Primary(Some(primary)))
    }
}

/// A primary context, given up without the interpreter's lock; a forked child has no driver to give it back to.
struct Primary(Option<KeptPrimary>);

impl Drop for Primary {
    fn drop(&mut self) {
        match driver() {
            Ok(_) => detach(|| drop(self.0.take())),
            Err(_) => std::mem::forget(self.0.take()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::script::{self, Script};

    /// What a forked child has is its parent's to give back: it has no driver, as a machine without one.
    #[test]
    fn a_primary_context_is_given_back_by_a_process_that_has_a_driver() {
        for is_installed in [true, false] {
            let script = Script::leak();
            script.primary(0, 0xc);
            let kept = KeptPrimary::of_device(script, 0).expect("a driver");
            let kept = kept.map(Kept::of_primary);
            assert_eq!(script.primary_count(0), 2);
            let _installed = is_installed.then(|| script::install(script));
            if driver().is_ok() == is_installed {
                drop(kept);
                assert_eq!(script.primary_count(0), if is_installed { 1 } else { 2 });
            }
        }
    }
}
