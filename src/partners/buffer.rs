//! The arrays that a library reads by a buffer, where it reads others by DLPack.

use crate::protocol::descriptor::Descriptor;

/// Whether a view of the array has a buffer in C or Fortran order.
pub(super) fn has_buffer(array: &Descriptor) -> bool {
    let layout = array.layout();
    array.device().is_host_readable()
        && array.dtype().format().is_some()
        && (array.len() == 0 || layout.is_c_contiguous() || layout.is_f_contiguous())
}

/// Whether strides are negative, or those of neither C nor Fortran order, also of axes without a second element.
pub(super) fn is_out_of_order(array: &Descriptor) -> bool {
    array.layout().has_negative_strides() || !is_in_order(array)
}

/// Whether the strides are those of C or of Fortran order, also of an array without elements.
fn is_in_order(array: &Descriptor) -> bool {
    let axes = || array.shape().iter().zip(array.elem_strides());
    is_running(axes()) || is_running(axes().rev())
}

/// Whether each stride is the product of the extents before it, but for axes of one element or none.
fn is_running<'a>(mut axes: impl Iterator<Item = (&'a i64, &'a i64)>) -> bool {
    let mut next = Some(1_i64);
    axes.all(|(extent, stride)| {
        let is_next = *extent <= 1 || next == Some(*stride);
        next = next.and_then(|next| next.checked_mul(*extent));
        is_next
    })
}
