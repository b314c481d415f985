//! The entry of every call of the driver API, [`enter`], and the macro that exports functions.
//!
//! Order of the checks: forked process, shut down, call log, GIL assertion, injected fault,
//! inside a host function, not initialised. Then the body runs; a panic becomes UNKNOWN.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::codes::{Code, Status, to_c};
use crate::entry::symbol::Class;
use crate::entry::{fault, gil, log};
use crate::process::{host_function, life};
use crate::run::schedule;

/// The running call, as its body sees it.
pub(crate) struct Call {
    /// True for the `_ptds` and `_ptsz` variants: handle 0 means the per-thread stream.
    pub(crate) per_thread: bool,
}

/// Runs one call of the API; `symbol` is the exported name.
pub(crate) fn enter(
    symbol: &'static str,
    class: Class,
    per_thread: bool,
    arguments: &[(&'static str, u64)],
    body: impl FnOnce(&Call) -> Status,
) -> u32 {
    let guarded = catch_unwind(AssertUnwindSafe(|| {
        check_process(class)?;
        let entry = log::begin(symbol, arguments);
        let status = admit(symbol, class).and_then(|()| body(&Call { per_thread }));
        log::end(entry, to_c(status));
        status
    }));
    match guarded {
        Ok(status) => to_c(status),
        Err(_) => {
            eprintln!("cusim: {symbol} panicked; this is a defect of the simulator");
            Code::UNKNOWN.0
        }
    }
}

/// Refuses calls in a process that was forked after cuInit, with NOT_INITIALIZED and without taking
/// a lock: a thread that the child does not have may hold it. After the destructor every call
/// but those of [`Class::Always`] returns DEINITIALIZED.
fn check_process(class: Class) -> Status {
    if life::is_forked() {
        return Err(Code::NOT_INITIALIZED);
    }
    if class != Class::Always && life::is_shut_down() {
        return Err(Code::DEINITIALIZED);
    }
    Ok(())
}

/// Runs the checks that all calls share, after the call log has the call.
fn admit(symbol: &'static str, class: Class) -> Status {
    gil::check(symbol, class);
    fault::check(symbol)?;
    if class == Class::Always {
        return Ok(());
    }
    if host_function::is_inside() {
        return Err(Code::NOT_PERMITTED);
    }
    if !life::is_initialised() {
        return Err(Code::NOT_INITIALIZED);
    }
    schedule::host_point();
    Ok(())
}

/// Exports a module's entry points: class, CUDA version that introduced the variant, C prototype,
/// and the body. `per_thread "_ptsz"` adds the variant with the per-thread default stream, which
/// CUDA 7.0 introduced. The rows end up in the module's `ROWS`.
macro_rules! exports {
    ($($class:ident $since:literal $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:ident $(, per_thread $suffix:literal)?;)*) => {
        pub(crate) const ROWS: &[crate::entry::symbol::Row] = &[$(
            crate::entry::symbol::Row {
                symbol: stringify!($name),
                since: $since,
                address: || {
                    // SAFETY: the name is CUDA's and this library is the one that defines it.
                    #[unsafe(export_name = stringify!($name))]
                    extern "C" fn entry($($arg: $ty),*) -> u32 {
                        crate::entry::enter::enter(
                            stringify!($name),
                            crate::entry::symbol::Class::$class,
                            false,
                            &[$((stringify!($arg), crate::abi::arguments::Word::word($arg))),*],
                            |call| self::$body(call, $($arg),*),
                        )
                    }
                    entry as *const () as usize
                },
                per_thread: crate::entry::enter::exports!(@per_thread $class $name($($arg: $ty),*) = $body $(, $suffix)?),
            },
        )*];
    };
    (@per_thread $class:ident $name:ident($($arg:ident: $ty:ty),*) = $body:ident) => { None };
    (@per_thread $class:ident $name:ident($($arg:ident: $ty:ty),*) = $body:ident, $suffix:literal) => {
        Some((
            || {
                // SAFETY: the name is CUDA's and this library is the one that defines it.
                #[unsafe(export_name = concat!(stringify!($name), $suffix))]
                extern "C" fn entry($($arg: $ty),*) -> u32 {
                    crate::entry::enter::enter(
                        concat!(stringify!($name), $suffix),
                        crate::entry::symbol::Class::$class,
                        true,
                        &[$((stringify!($arg), crate::abi::arguments::Word::word($arg))),*],
                        |call| self::$body(call, $($arg),*),
                    )
                }
                entry as *const () as usize
            },
            7000,
        ))
    };
}
pub(crate) use exports;
