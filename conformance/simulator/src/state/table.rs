//! Handles to objects: numbers that are never dereferenced, unique unless asked otherwise.

use std::collections::BTreeMap;

use crate::abi::codes::Code;

/// The objects of one kind, by handle.
///
/// By default a destroyed handle is never reused, so that its use is always an error. With `reuse`
/// the last destroyed handle is the next one given out, as a real driver does, so that a stale
/// handle names another object.
pub(crate) struct Table<H, T> {
    objects: BTreeMap<H, T>,
    destroyed: Vec<H>,
    next: usize,
    /// The error for a handle that names no object.
    refusal: Code,
}

/// Handles of one table are this far apart, like the addresses of small structures.
const STEP: usize = 0x40;

impl<H: Copy + Ord + From<usize>, T> Table<H, T> {
    /// Makes an empty table; `base` makes the kind of a handle readable in a log.
    pub(crate) const fn new(base: usize, refusal: Code) -> Table<H, T> {
        Table {
            objects: BTreeMap::new(),
            destroyed: Vec::new(),
            next: base,
            refusal,
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
        self.objects.insert(handle, object);
        handle
    }

    /// Puts an object back under a handle that it had before.
    pub(crate) fn restore(&mut self, handle: H, object: T) {
        self.destroyed.retain(|other| *other != handle);
        self.objects.insert(handle, object);
    }

    pub(crate) fn remove(&mut self, handle: H) -> Result<T, Code> {
        let object = self.objects.remove(&handle).ok_or(self.refusal)?;
        self.destroyed.push(handle);
        Ok(object)
    }

    /// Removes the object; its handle stays reserved for [`Table::restore`].
    pub(crate) fn suspend(&mut self, handle: H) -> Option<T> {
        self.objects.remove(&handle)
    }

    pub(crate) fn get(&self, handle: H) -> Result<&T, Code> {
        self.objects.get(&handle).ok_or(self.refusal)
    }

    pub(crate) fn get_mut(&mut self, handle: H) -> Result<&mut T, Code> {
        self.objects.get_mut(&handle).ok_or(self.refusal)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (H, &T)> {
        self.objects
            .iter()
            .map(|(handle, object)| (*handle, object))
    }

    /// Removes the objects for which `unwanted` holds.
    pub(crate) fn remove_where(&mut self, unwanted: impl Fn(&T) -> bool) {
        self.objects.retain(|handle, object| {
            let kept = !unwanted(object);
            if !kept {
                self.destroyed.push(*handle);
            }
            kept
        });
    }
}
