//! Tensors of tvm-ffi's crate as views, and views as such tensors: no copy either way.

use std::ffi::c_void;
use std::ptr;

use cai_dlpack::CaiView;
use cai_dlpack::view::{DLManagedTensorVersioned, DlpackTensor, IntoLiveStream, Managed};
use tvm_ffi::tvm_ffi_sys::{TVMFFITensorFromDLPack, TVMFFITensorToDLPackVersioned};
use tvm_ffi::{ObjectArc, ObjectRefCore, Tensor};

/// What either library refuses.
#[derive(Debug)]
pub enum Error {
    /// This one.
    Cai(cai_dlpack::Error),
    /// tvm-ffi.
    Tvm(tvm_ffi::Error),
}

impl From<cai_dlpack::Error> for Error {
    fn from(error: cai_dlpack::Error) -> Self {
        Self::Cai(error)
    }
}

/// A tensor as a view, which keeps it, and `ready`, the stream that its data is ready on.
///
/// # Errors
/// What DLPack's rules refuse.
pub fn view_of<'s>(
    tensor: &Tensor,
    ready: impl IntoLiveStream<'s>,
) -> Result<CaiView, Error> {
    // SAFETY: borrowed for the call below.
    let handle = unsafe { ObjectArc::as_raw(Tensor::data(tensor)) };
    let mut managed = ptr::null_mut::<c_void>();
    // SAFETY: a tensor that is alive; writes one pointer to a live local.
    let code = unsafe { TVMFFITensorToDLPackVersioned(handle.cast_mut().cast(), &mut managed) };
    if code != 0 {
        return Err(Error::Tvm(tvm_ffi::Error::from_raised()));
    }
    let managed = managed.cast::<DLManagedTensorVersioned>();
    // SAFETY: a fresh tensor that is ours, with tvm-ffi's deleter, for any thread.
    let managed = unsafe { Managed::from_raw(managed) }.expect("of DLPack's present version");
    // SAFETY: it keeps tvm-ffi's memory, which it describes.
    let managed = unsafe { DlpackTensor::new(managed) };
    Ok(CaiView::from_dlpack(managed, ready)?)
}

/// A view as a tensor, which keeps the view's owner; ordered for work on `consumer`.
///
/// tvm-ffi's tensors cannot say that they are read-only, no more than DLPack's legacy layout can: so that is
/// the one that goes over.
///
/// # Errors
/// Read-only data, and whatever else `to_dlpack_legacy` refuses; and what tvm-ffi does.
pub fn tensor_of<'s>(
    view: &CaiView,
    consumer: impl IntoLiveStream<'s>,
) -> Result<Tensor, Error> {
    let managed = view.to_dlpack_legacy(consumer)?.into_raw();
    let mut handle = ptr::null_mut();
    // SAFETY: a fresh tensor, given away unless it is refused; writes one pointer to a live local.
    let code = unsafe { TVMFFITensorFromDLPack(managed.cast(), 0, 0, &mut handle) };
    if code != 0 {
        // SAFETY: refused, and so still ours.
        drop(unsafe { Managed::from_raw(managed) });
        return Err(Error::Tvm(tvm_ffi::Error::from_raised()));
    }
    // SAFETY: one count of a tensor, which is the answer's.
    let data = unsafe { ObjectArc::from_raw(handle.cast_const().cast()) };
    // SAFETY: any tensor is one.
    Ok(unsafe { Tensor::from_data(data) })
}
