//! Handles to objects: numbers that are never dereferenced, unique unless asked otherwise.

use std::collections::{BTreeMap, BTreeSet};

use crate::abi::codes::Code;

/// The errors for a handle that names no object. Driver 580.159.04 tells these cases apart where it does not crash.
#[derive(Clone, Copy)]
pub(crate) struct Refusals {
    /// A number that this table never gave out.
    pub(crate) unknown: Code,
    /// An object that was destroyed.
    pub(crate) destroyed: Code,
    /// An object that ended with the context that it was created in, which was destroyed.
    pub(crate) orphaned: Code,
}

impl Refusals {
    /// The same error in all cases.
    pub(crate) const fn all(code: Code) -> Refusals {
        Refusals {
            unknown: code,
            destroyed: code,
            orphaned: code,
        }
    }
}

/// The objects of one kind, by handle.
///
/// By default a destroyed handle is never reused, so that its use is always an error. With `reuse`
/// the last destroyed handle is the next one given out, as a real driver does, so that a stale
/// handle names another object.
pub(crate) struct Table<H, T> {
    objects: BTreeMap<H, T>,
    destroyed: Vec<H>,
    orphaned: BTreeSet<H>,
    base: usize,
    next: usize,
    refusals: Refusals,
}

/// Handles of one table are this far apart, like the addresses of small structures.
const STEP: usize = 0x40;

impl<H: Copy + Ord + From<usize>, T> Table<H, T> {
    /// Makes an empty table; `base` makes the kind of a handle readable in a log.
    pub(crate) const fn new(base: usize, refusals: Refusals) -> Table<H, T> {
        Table {
            objects: BTreeMap::new(),
            destroyed: Vec::new(),
            orphaned: BTreeSet::new(),
            base,
            next: base,
            refusals,
        }
    }

    /// Adds an object, and returns its handle.
    pub(crate) fn insert(&mut self, reuse: bool, object: T) -> H {
        let recycled = if reuse { self.destroyed.pop() } else { None };
        let handle = recycled.unwrap_or_else(|| {
            let fresh = H::from(self.next);
            self.next += STEP;
            fresh
        });
        self.orphaned.remove(&handle);
        self.objects.insert(handle, object);
        handle
    }

    /// Puts an object back under a handle that it had before.
    pub(crate) fn restore(&mut self, handle: H, object: T) {
        self.destroyed.retain(|other| *other != handle);
        self.objects.insert(handle, object);
    }

    pub(crate) fn remove(&mut self, handle: H) -> Result<T, Code> {
        let object = self.objects.remove(&handle).ok_or(self.refusal(handle))?;
        self.destroyed.push(handle);
        Ok(object)
    }

    /// Removes the object; its handle stays reserved for [`Table::restore`].
    pub(crate) fn suspend(&mut self, handle: H) -> Option<T> {
        self.objects.remove(&handle)
    }

    pub(crate) fn get(&self, handle: H) -> Result<&T, Code> {
        self.objects.get(&handle).ok_or(self.refusal(handle))
    }

    pub(crate) fn get_mut(&mut self, handle: H) -> Result<&mut T, Code> {
        let refusal = self.refusal(handle);
        self.objects.get_mut(&handle).ok_or(refusal)
    }

    /// Returns the error for a handle that names no object.
    fn refusal(&self, handle: H) -> Code {
        if self.orphaned.contains(&handle) {
            self.refusals.orphaned
        } else if (H::from(self.base)..H::from(self.next)).contains(&handle) {
            self.refusals.destroyed
        } else {
            self.refusals.unknown
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Removes the objects for which `unwanted` holds, and returns their handles.
    pub(crate) fn remove_where(&mut self, unwanted: impl Fn(&T) -> bool) -> Vec<H> {
        let mut gone = Vec::new();
        self.objects.retain(|handle, object| {
            let is_kept = !unwanted(object);
            if !is_kept {
                gone.push(*handle);
            }
            is_kept
        });
        self.destroyed.extend(&gone);
        gone
    }

    /// Removes the objects of a context that was destroyed.
    pub(crate) fn orphan_where(&mut self, unwanted: impl Fn(&T) -> bool) {
        let gone = self.remove_where(unwanted);
        self.orphaned.extend(gone);
    }
}
