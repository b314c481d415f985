//! Records: arrays whose items have fields, which DLPack cannot express.
//!
//! A view of one has memory, owner and order as any other, and leaves by CAI. One field of it is a strided view of
//! the same memory, which leaves by DLPack too if DLPack has its type.

use super::CaiView;
use crate::protocol::descriptor::named_on;
use crate::protocol::device::Device;
use crate::protocol::dtype::DType;
use crate::protocol::interface::CaiInterface;
use crate::protocol::rule::{Field, Rule, Violation};

impl CaiView {
    /// Returns one field of records, as a strided view of the same memory, owner and streams. With `dtype` the field's
    /// bits are taken as that type.
    ///
    /// A field that DLPack cannot describe (records again, text, the other byte order, a stride that is no multiple of
    /// its size) leaves by CAI, and DLPack's exports refuse it.
    ///
    /// # Errors
    /// `field-unknown`, `field-none`; with `dtype` also `field-stride` and the rules of the field's type.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    /// use cai_dlpack::protocol::device::Device;
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{CaiInterface, DescrBuilder, Parts};
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::stream::Stream;
    /// use cai_dlpack::view::{LiveStream, Owner};
    ///
    /// let (typestr, points) = (TypeStr::parse("|V8")?, vec![[1.0_f32, 2.0], [3.0, 4.0]]);
    /// let mut fields = DescrBuilder::new();
    /// fields.push("x", "<f4", &[])?;
    /// fields.push("y", "<f4", &[])?;
    /// let (data, axes) = (points.as_ptr().expose_provenance() as u64, Axes::from_slices(Source::Cai, &[2], None)?);
    /// let parts = Parts::new(data, typestr, axes).with_descr(fields.finish(typestr)?);
    /// let whole = CaiInterface::new(parts)?;
    /// let descriptor = whole.describe(Device::HOST)?;
    /// // SAFETY: the items lie in the vector, which the owner keeps; `Stream::None` is always alive.
    /// let points = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(points)) };
    /// assert!(points.to_dlpack(LiveStream::NONE).err().expect("refused").to_string().contains("descr-fields"));
    /// assert_eq!(points.field("y", None)?.typed::<f32>()?.copy_to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn field(&self, name: &str, dtype: Option<DType>) -> Result<Self, Violation> {
        let (whole, device) = (self.descriptor(), self.device());
        let part = CaiInterface::of_field(whole, name)?;
        let descriptor = match dtype {
            None => part.describe_with(device, |refusal| named(refusal, name, device)),
            Some(_) => part.into_descriptor(dtype, device),
        };
        // A dict cannot state that it is unknown.
        let descriptor = descriptor
            .map_err(|refusal| named(refusal, name, device))?
            .with_access(whole.access());
        // SAFETY: the fields of an item lie within it (`CaiInterface::new`), so that every byte of theirs is one of the
        // whole, which the owner keeps.
        Ok(unsafe { self.derive(descriptor) })
    }
}

/// Names the field in what a dict cannot say by DLPack. Records on the CPU come by NumPy's interface.
fn named(refusal: Violation, name: &str, device: Device) -> Violation {
    let rule = match refusal.rule() {
        Rule::StridesMultiple => Rule::FieldStride,
        Rule::TypestrByteOrder => Rule::TypestrByteOrder,
        _ => return refusal,
    };
    let found = match rule {
        Rule::FieldStride => format!("{} for field '{name}'", refusal.found()),
        _ => format!("{} of field '{name}'", refusal.found()),
    };
    named_on(device, Violation::new(rule, Field::CaiDescr, found))
}
