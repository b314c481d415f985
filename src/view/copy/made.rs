//! The view of what a copy has made.

use crate::protocol::descriptor::Descriptor;
use crate::protocol::stream::Stream;
use crate::view::{CaiView, Owner};

/// Makes the view of a copy.
///
/// # Safety
/// `owner` owns `descriptor`'s memory, which is ready on `ready`.
pub(super) unsafe fn view_of(descriptor: Descriptor, ready: Stream, owner: Owner) -> CaiView {
    // SAFETY: `owner` keeps the elements, which are this library's own, and `ready` is a live stream or none,
    // by this function's contract.
    unsafe { CaiView::of(descriptor, ready, Some(ready), owner) }
}
