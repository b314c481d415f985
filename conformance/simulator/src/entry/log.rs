//! The call log: every call of the driver API, with arguments and result.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::entry::symbol::is_variant;
use crate::process::thread;

/// The number of calls that the log keeps; counts include older ones.
const KEPT: usize = 1 << 16;

/// The number of a call that is not in the log.
const NOT_LOGGED: u64 = u64::MAX;

/// Result of a call that has not returned yet.
pub(crate) const RUNNING: u32 = u32::MAX;

/// One call.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) symbol: &'static str,
    pub(crate) arguments: Vec<(&'static str, u64)>,
    pub(crate) result: u32,
}

impl Entry {
    /// Formats the call: `cuEventRecord(event=0xe7e000000000, stream=0x57ea00000000) = 0`.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}(", self.symbol);
        for (index, (name, value)) in self.arguments.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{comma}{name}={value:#x}");
        }
        let result = if self.result == RUNNING {
            "…".to_owned()
        } else {
            self.result.to_string()
        };
        let _ = write!(text, ") = {result}");
        text
    }
}

struct Log {
    entries: VecDeque<Entry>,
    counts: BTreeMap<&'static str, u64>,
    next: u64,
    /// Calls of cuGetProcAddress: name, version, flags, found.
    lookups: Vec<(String, u32, u64, bool)>,
}

static LOG: Mutex<Log> = Mutex::new(Log {
    entries: VecDeque::new(),
    counts: BTreeMap::new(),
    next: 0,
    lookups: Vec::new(),
});

fn with<R>(f: impl FnOnce(&mut Log) -> R) -> R {
    f(&mut LOG.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns whether a call only looks a name up: those are kept apart, by [`lookup`].
fn is_lookup(symbol: &str) -> bool {
    symbol.starts_with("cuGetProcAddress")
}

/// No thread's calls, for measurements: logging costs a few hundred nanoseconds for each call.
const NO_THREAD: u64 = 0;
const EVERY_THREAD: u64 = u64::MAX;

/// The threads whose calls are logged: none, every one, or the one of this [`thread::key`].
static LOGGED: AtomicU64 = AtomicU64::new(EVERY_THREAD);

/// Logs no calls (0), all calls (1), or those of the calling thread (2).
pub(crate) fn set_logging(setting: u64) {
    let logged = match setting {
        0 => NO_THREAD,
        2 => thread::key(),
        _ => EVERY_THREAD,
    };
    LOGGED.store(logged, Ordering::Release);
}

/// Returns the setting of [`set_logging`].
pub(crate) fn logging() -> u64 {
    match LOGGED.load(Ordering::Acquire) {
        NO_THREAD => 0,
        EVERY_THREAD => 1,
        _ => 2,
    }
}

fn is_logged() -> bool {
    match LOGGED.load(Ordering::Acquire) {
        NO_THREAD => false,
        EVERY_THREAD => true,
        one => thread::key() == one,
    }
}

/// Notes the beginning of a call, and returns its number for [`end`].
pub(crate) fn begin(symbol: &'static str, arguments: &[(&'static str, u64)]) -> u64 {
    if is_lookup(symbol) || !is_logged() {
        return NOT_LOGGED;
    }
    with(|log| {
        // Asked once more under the lock: a setting before `clear` then holds for all that stands there after it.
        if !is_logged() {
            return NOT_LOGGED;
        }
        let number = log.next;
        log.next += 1;
        *log.counts.entry(symbol).or_default() += 1;
        if log.entries.len() == KEPT {
            log.entries.pop_front();
        }
        log.entries.push_back(Entry {
            number,
            symbol,
            arguments: arguments.to_vec(),
            result: RUNNING,
        });
        number
    })
}

/// Notes the result of a call.
pub(crate) fn end(number: u64, result: u32) {
    if number == NOT_LOGGED {
        return;
    }
    with(|log| {
        let Some(first) = log.entries.front().map(|entry| entry.number) else {
            return;
        };
        let index = number
            .checked_sub(first)
            .and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| log.entries.get_mut(index)) {
            entry.result = result;
        }
    });
}

/// Notes a name that cuGetProcAddress was asked for.
pub(crate) fn lookup(name: &str, version: u32, flags: u64, found: bool) {
    with(|log| log.lookups.push((name.to_owned(), version, flags, found)));
}

/// Forgets calls and counts; numbers go on, so that calls in flight find nothing to patch.
pub(crate) fn clear() {
    with(|log| {
        log.entries.clear();
        log.counts.clear();
    });
}

/// Counts the calls of a function, whatever its suffix (`_v2`, `_ptsz`); all calls for None.
pub(crate) fn count(name: Option<&str>) -> u64 {
    with(|log| {
        log.counts
            .iter()
            .filter(|(symbol, _)| name.is_none_or(|name| is_variant(symbol, name)))
            .map(|(_, count)| *count)
            .sum()
    })
}

pub(crate) fn entries() -> Vec<Entry> {
    with(|log| log.entries.iter().cloned().collect())
}

/// Formats the lookups as lines: `name version flags found`.
pub(crate) fn lookups() -> String {
    with(|log| {
        let mut text = String::new();
        for (name, version, flags, found) in &log.lookups {
            let _ = writeln!(text, "{name} {version} {flags} {}", u8::from(*found));
        }
        text
    })
}
