//! Makes managed tensors of views.

use dlpark::Managed;
use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};

use super::{Abi, CaiView, build};
use crate::error::Error;
use crate::protocol::descriptor::DescriptorRef;
use crate::protocol::device::{Access, Flags};
use crate::protocol::dtype::DType;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, Stream, SyncPolicy};

impl CaiView {
    /// Makes a managed tensor (DLPack 1.3) of the same memory, ordered for `consumer`.
    ///
    /// Work that is enqueued on `consumer` after this call finds the data ready: one event is recorded
    /// and waited for, none if the ready stream is [`Stream::None`] or `consumer` itself.
    /// [`Stream::None`] asks for no order. The tensor keeps the owner alive by itself; the view may go.
    ///
    /// # Errors
    /// A [`Violation`] if DLPack cannot describe the array
    /// ([`check_dlpack`](crate::protocol::descriptor::Descriptor::check_dlpack)) or no order can be made (a graph capture
    /// forbids it),
    /// a [`DriverError`](crate::driver::DriverError) if the driver refuses, or no memory. Nothing
    /// has been shared then.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::view::stats;
    ///
    /// let tensor = floats().to_dlpack(Stream::None)?; // the view is gone, and the memory is not
    /// let live = stats().live;
    /// drop(tensor); // calls the deleter
    /// assert_eq!(stats().live, live - 1);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn to_dlpack(&self, consumer: Stream) -> Result<Managed<DLManagedTensorVersioned>, Error> {
        self.descriptor.check_dlpack()?;
        self.order(Request::Stream(consumer), SyncPolicy::Event)?;
        // The view and other tensors of it hold the memory too: here it is no copy, even if this library made one.
        let flags = self.descriptor.flags().with(Flags::IS_COPIED, false);
        self.managed(flags.bits())
    }

    /// Like [`CaiView::to_dlpack`], in the layout before DLPack 1.0, which has no flags.
    ///
    /// # Errors
    /// As [`CaiView::to_dlpack`]; and `read-only-legacy` for read-only data, `padded-legacy` for padded elements, which
    /// this layout cannot express. [Unknown](Access::Unknown) access, which it expresses too, passes.
    ///
    /// ```
    #[doc = floats!()]
    /// assert!(floats().to_dlpack_legacy(Stream::None).is_ok());
    /// ```
    pub fn to_dlpack_legacy(&self, consumer: Stream) -> Result<Managed<DLManagedTensor>, Error> {
        self.descriptor.check_dlpack()?;
        check_legacy(self.descriptor.access())?;
        refuse_padded(self.descriptor.borrowed(), Field::Argument("max_version"))?;
        self.order(Request::Stream(consumer), SyncPolicy::Event)?;
        self.managed(0)
    }

    fn managed<M: Abi>(&self, flags: u64) -> Result<Managed<M>, Error> {
        let owner = self.owner.share().into_raw();
        let tensor = build::<M>(self.descriptor.borrowed(), flags, owner).inspect_err(|_| {
            // SAFETY: `build` did not take the count that `share` made, so that it is still ours to end.
            unsafe { owner.release() };
        })?;
        // SAFETY: `build` returns an initialised tensor whose ownership is the caller's, of our version.
        Ok(unsafe { Managed::from_raw(tensor.as_ptr()) }
            .unwrap_or_else(|_| unreachable!("our own version")))
    }
}

/// Refuses to hide from a consumer that the data is read-only.
fn check_legacy(access: Access) -> Result<(), Violation> {
    if access == Access::ReadOnly {
        return Err(Violation::new(
            Rule::ReadOnlyLegacy,
            Field::Argument("max_version"),
            "a legacy tensor",
        ));
    }
    Ok(())
}

/// Refuses to hide the padding of elements smaller than a byte from a consumer: read as packed ones, they are other
/// numbers. The flag means nothing for larger elements.
#[inline]
pub(crate) fn refuse_padded(described: DescriptorRef<'_>, field: Field) -> Result<(), Violation> {
    let is_padded = described.flags.contains(Flags::SUBBYTE_PADDED);
    match is_padded && described.dtype.is_sub_byte() {
        false => Ok(()),
        true => Err(padded(described.dtype, field)),
    }
}

#[cold]
fn padded(dtype: DType, field: Field) -> Violation {
    Violation::new(Rule::PaddedLegacy, field, format_args!("padded {dtype}"))
        .with_hint("max_version=(1, 0) asks for a tensor with flags")
}
