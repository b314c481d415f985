//! Makes managed tensors of views.

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};

use super::{Abi, CaiView, DlpackTensor, IntoLiveStream, LiveStream, build};
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
    /// and waited for, none if the data is ready everywhere or on `consumer` itself.
    /// [`LiveStream::NONE`] asks for no order. The tensor keeps the owner alive by itself; the view may go.
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
    /// use cai_dlpack::view::{LiveStream, stats};
    ///
    /// let tensor = floats().to_dlpack(LiveStream::NONE)?; // the view is gone, and the memory is not
    /// let live = stats().live;
    /// drop(tensor); // calls the deleter
    /// assert_eq!(stats().live, live - 1);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn to_dlpack<'s>(
        &self,
        consumer: impl IntoLiveStream<'s>,
    ) -> Result<DlpackTensor<DLManagedTensorVersioned>, Error> {
        self.descriptor.check_dlpack()?;
        self.order_for(consumer.into_live_stream())?;
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
    /// assert!(floats().to_dlpack_legacy(cai_dlpack::view::LiveStream::NONE).is_ok());
    /// ```
    pub fn to_dlpack_legacy<'s>(
        &self,
        consumer: impl IntoLiveStream<'s>,
    ) -> Result<DlpackTensor<DLManagedTensor>, Error> {
        self.descriptor.check_dlpack()?;
        check_legacy(self.descriptor.access())?;
        refuse_padded(self.descriptor.borrowed(), Field::Argument("max_version"))?;
        self.order_for(consumer.into_live_stream())?;
        self.managed(0)
    }

    /// Makes the consumer's stream wait. Its handle is used during this call only: a tensor carries no stream.
    fn order_for(&self, consumer: LiveStream<'_>) -> Result<(), Error> {
        let is_pending = self.ready_number() != Stream::None;
        consumer.for_memory(self, is_pending, |number| {
            if is_pending {
                consumer.check_current(self)?;
            }
            self.order(Request::Stream(number), SyncPolicy::Event)
        })
    }

    fn managed<M: Abi>(&self, flags: u64) -> Result<DlpackTensor<M>, Error> {
        let owner = self.owner.share().into_raw();
        let tensor = build::<M>(self.descriptor.borrowed(), flags, owner).inspect_err(|_| {
            // SAFETY: `build` did not take the count that `share` made, so that it is still ours to end.
            unsafe { owner.release() };
        })?;
        // SAFETY: `build` returns an initialised tensor whose ownership is the caller's, with shape and strides in its
        // own block and a deleter for any thread; the owner in it keeps the elements, which this view describes.
        Ok(unsafe { DlpackTensor::from_raw(tensor) })
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
/// numbers.
#[inline]
pub(crate) fn refuse_padded(described: DescriptorRef<'_>, field: Field) -> Result<(), Violation> {
    match described.is_padded() {
        false => Ok(()),
        true => Err(padded(described.dtype, field)),
    }
}

/// Refuses packed elements to a reader that counts whole bytes for each item: it would read past the end. `item` is a
/// lane times the lanes, which is what shares bytes.
///
/// # Errors
/// `packed-legacy`.
#[cfg(feature = "pyo3")]
pub(crate) fn refuse_packed(described: DescriptorRef<'_>, field: Field) -> Result<(), Violation> {
    let dtype = described.dtype;
    match dtype.itemsize() {
        None if !described.is_padded() => Err(Violation::new(
            Rule::PackedLegacy,
            field,
            format_args!("packed {dtype}"),
        )),
        _ => Ok(()),
    }
}

#[cold]
fn padded(dtype: DType, field: Field) -> Violation {
    let violation = Violation::new(Rule::PaddedLegacy, field, format_args!("padded {dtype}"));
    match dtype.lanes() {
        1 => violation.with_hint("dtype='uint8' presents the bytes"),
        _ => violation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::descriptor::{Descriptor, RawTensor};

    /// What a consumer of whole bytes cannot read is refused, and nothing else.
    #[test]
    fn elements_of_part_of_a_byte_are_refused_as_they_are_stored() {
        let packings = [Flags::NONE, Flags::SUBBYTE_PADDED];
        for (bits, lanes, flags) in [1, 2, 4, 8, 16].into_iter().flat_map(|bits| {
            [1, 2, 3]
                .into_iter()
                .flat_map(move |lanes| packings.map(|flags| (bits, lanes, flags)))
        }) {
            let made = Descriptor::new(&RawTensor {
                code: 1,
                bits,
                lanes,
                flags,
                shape: &[4],
                ..RawTensor::EXAMPLE
            });
            let made = made.expect("a valid tensor");
            let refused = |answer: Result<(), Violation>| answer.err().map(|error| error.rule());
            let field = Field::Argument("max_version");
            let is_padded = bits < 8 && flags == Flags::SUBBYTE_PADDED;
            let padded = refused(refuse_padded(made.borrowed(), field));
            assert_eq!(padded, is_padded.then_some(Rule::PaddedLegacy));
            #[cfg(feature = "pyo3")]
            {
                let is_packed =
                    !is_padded && !(u32::from(bits) * u32::from(lanes)).is_multiple_of(8);
                let packed = refused(refuse_packed(made.borrowed(), field));
                assert_eq!(
                    packed,
                    is_packed.then_some(Rule::PackedLegacy),
                    "{bits} {lanes}"
                );
            }
        }
    }
}
