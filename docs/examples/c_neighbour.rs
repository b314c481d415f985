//! Tensors to a C library and back, as pointers: `cargo run --example c_neighbour`.
//!
//! The library is written in Rust here, behind a C interface.

use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{DLManagedTensorVersioned, LiveStream};
use cai_dlpack::{CaiView, Error};

/// The library's function: takes a tensor of float32, reverses its axes, and gives it back. NULL if it wants no such one.
///
/// # Safety
/// `tensor` is one that the caller gives away.
unsafe extern "C" fn transpose(
    tensor: *mut DLManagedTensorVersioned,
) -> *mut DLManagedTensorVersioned {
    let turn = || -> Result<*mut DLManagedTensorVersioned, Error> {
        // SAFETY: our own contract. It is of the CPU, and ready.
        let view = unsafe { CaiView::from_dlpack_ptr(tensor, Stream::None) }?;
        let turned = view.typed::<f32>()?.host()?.transpose()?;
        Ok(turned.cai().to_dlpack(LiveStream::NONE)?.into_raw())
    };
    turn().unwrap_or(std::ptr::null_mut())
}

fn main() -> Result<(), Error> {
    let view = CaiView::from_vec([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;

    let given = view.to_dlpack(LiveStream::NONE)?.into_raw();
    // SAFETY: the tensor is given away.
    let taken = unsafe { transpose(given) };
    // SAFETY: the library gives the tensor away, or returns NULL, which is refused; it is ready.
    let turned = unsafe { CaiView::from_dlpack_ptr(taken, Stream::None) }?;
    assert_eq!(
        turned.descriptor().data(),
        view.descriptor().data(),
        "no copy"
    );
    let values = turned.typed::<f32>()?.copy_to_vec()?;
    assert_eq!(values, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    println!("{values:?} of shape {:?}", turned.shape());
    Ok(())
}
