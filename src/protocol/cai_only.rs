//! [`CaiOnly`]: the items of a dict that DLPack cannot describe.
//!
//! | the dict has | DLPack has |
//! |---|---|
//! | records, `\|V16`, text, dates, long doubles, the other byte order | no such element type |
//! | a stride that is no whole number of items | strides in elements |
//! | an address that its element type cannot have | an address that consumers take to be aligned |
//!
//! Both sides of the CUDA Array Interface can say each of them. So the description keeps what the dict said, and the
//! refusal to say it by DLPack, which every export by DLPack returns.

use super::descr::Descr;
use super::dtype::{DType, TypeStr};
use super::rule::Violation;

/// The items of an array that only the CUDA Array Interface can describe
/// ([`Descriptor::cai_only`](super::descriptor::Descriptor::cai_only)).
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
/// use cai_dlpack::protocol::cai_only::CaiOnly;
/// use cai_dlpack::protocol::device::Device;
/// use cai_dlpack::protocol::dtype::TypeStr;
/// use cai_dlpack::protocol::interface::{CaiInterface, Descr, Parts};
///
/// let axes = Axes::from_slices(Source::Cai, &[2], None)?;
/// let text = CaiInterface::new(Parts::new(0x7000_0000, TypeStr::parse("|S8")?, axes))?;
/// let array = text.describe(Device::cuda(0))?;
/// let only: &CaiOnly = array.cai_only().expect("DLPack has no text");
/// assert_eq!((only.descr(), only.refusal().rule().id()), (&Descr::None, "typestr-bytes"));
/// assert_eq!((only.typestr().to_string(), only.dtype()), ("|S8".to_owned(), None));
/// assert!(array.check_dlpack().is_err());
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaiOnly {
    pub(super) typestr: TypeStr,
    pub(super) descr: Descr,
    pub(super) refusal: Violation,
}

impl CaiOnly {
    /// Returns the kind, size and byte order of the items.
    #[must_use]
    pub const fn typestr(&self) -> TypeStr {
        self.typestr
    }

    /// Returns the fields of records.
    #[must_use]
    pub const fn descr(&self) -> &Descr {
        &self.descr
    }

    /// Returns why DLPack cannot describe the array: the refusal that each export by it returns.
    #[must_use]
    pub const fn refusal(&self) -> &Violation {
        &self.refusal
    }

    /// Returns DLPack's type of the items, if it is the strides or the address that it cannot describe.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        match self.descr {
            Descr::Fields(_) => None,
            Descr::None | Descr::Trivial => self.typestr.to_dtype().ok(),
        }
    }
}

impl std::fmt::Display for CaiOnly {
    /// Writes the type as NumPy names it: `void96` for records, DLPack's name for its types, else the typestr.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.descr, self.dtype()) {
            (Descr::Fields(_), _) => write!(
                f,
                "void{}",
                u64::from(self.typestr.itemsize()).wrapping_mul(8)
            ),
            (_, Some(dtype)) => dtype.fmt(f),
            (_, None) => self.typestr.fmt(f),
        }
    }
}
