//! Structs: arrays whose items have fields, which DLPack cannot express.
//!
//! A view of one has memory, owner and order as any other. It goes nowhere as a whole (`descr-fields`); one field
//! of it is a strided view of the same memory, which does.

use super::CaiView;
use crate::protocol::dtype::DType;
use crate::protocol::interface::{CaiInterface, Descr};
use crate::protocol::rule::{Field, Rule, Violation};

impl CaiView {
    /// Returns one field of a struct, as a strided view of the same memory, owner and streams, and its own fields
    /// if it is a struct itself. `fields` are those of this view ([`CaiInterface::into_struct`]); with `dtype` the
    /// field's bits are taken as that type.
    ///
    /// # Errors
    /// - `field-unknown`, `field-none`, `field-stride` and the rules of the field's type.
    /// - `descr-size` if `fields` are those of larger items.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    /// use cai_dlpack::protocol::device::Device;
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{CaiInterface, DescrBuilder, Parts, Version};
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::stream::Stream;
    /// use cai_dlpack::view::Owner;
    ///
    /// let (typestr, points) = (TypeStr::parse("|V8")?, vec![[1.0_f32, 2.0], [3.0, 4.0]]);
    /// let mut fields = DescrBuilder::new();
    /// fields.push("x", "<f4", &[])?;
    /// fields.push("y", "<f4", &[])?;
    /// let whole = CaiInterface::new(Parts {
    ///     version: Version::V3,
    ///     typestr,
    ///     descr: fields.finish(typestr)?,
    ///     axes: Axes::from_slices(Source::Cai, &[2], None)?,
    ///     data: points.as_ptr().expose_provenance() as u64,
    ///     read_only: false,
    ///     stream: Stream::None,
    /// })?;
    /// let (descriptor, fields) = whole.into_struct(Device::HOST)?;
    /// // SAFETY: the items lie in the vector, which the owner keeps; `Stream::None` is always alive.
    /// let points = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(points)) };
    /// let (y, _) = points.field(&fields, "y", None)?;
    /// assert_eq!(y.typed::<f32>()?.copy_to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn field(
        &self,
        fields: &Descr,
        name: &str,
        dtype: Option<DType>,
    ) -> Result<(Self, Descr), Violation> {
        let (whole, device) = (self.descriptor(), self.device());
        let part = CaiInterface::of_struct(whole, fields.clone()).field(name)?;
        let span = part.byte_span();
        let (descriptor, fields) = match part.descr() {
            Descr::Fields(_) if dtype.is_none() => part.into_struct(device)?,
            _ => (part.into_descriptor(dtype, device)?, Descr::None),
        };
        // A dict cannot state that it is unknown.
        let descriptor = descriptor.with_access(whole.access());
        let is_inside = match (span, whole.byte_span()) {
            (Some((start, end)), Some(whole)) => whole.0 <= start && end <= whole.1,
            (span, _) => span.is_none(),
        };
        if !is_inside {
            let found = format_args!("field '{name}', beyond items of {}", whole.dtype());
            return Err(Violation::new(Rule::DescrSize, Field::CaiDescr, found));
        }
        // SAFETY: every byte of it lies within the span of the whole, which the owner keeps.
        Ok((unsafe { self.derive(descriptor) }, fields))
    }
}
