//! Views with an element type, as functions in Rust take them.
//!
//! | | shared | mutable |
//! |---|---|---|
//! | borrowed from a [`CaiView`] | [`View<'_, T>`](View) | [`ViewMut<'_, T>`](ViewMut) |
//! | asked for by | [`CaiView::typed`] | [`CaiView::typed_mut`] |
//! | demands | element type, alignment, bounds if the driver knows them | also: writable, no two indices for one element |
//!
//! # What `'_` and `&mut` prove, and what they do not
//! The lifetime keeps the owner: the memory is there as long as the view. The exclusive borrow keeps
//! other views *of this value* away, and the ledger those of arguments of Python functions that are in use. Neither proves anything about work on the GPU, about the producer,
//! or about another array over the same memory; stream order is what `on` is for, and reading host
//! memory as a slice is `unsafe` with a list ([`View::host_slice`]).

use std::fmt;
use std::marker::PhantomData;

use self::array::{Array, ArrayMut};
use super::element::check_size;
use super::{CaiView, Element};
use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device};
use crate::protocol::dtype::DType;
use crate::protocol::rule::{Field, Rule, Violation};

mod array;
mod host;
mod part;

/// An array of elements `T`, or a part of one, borrowed. A clone is another view of the same elements.
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::Error;
/// use cai_dlpack::view::View;
///
/// fn sum(a: View<'_, f32>) -> Result<f32, Error> {
///     let a = a.c_order()?.host()?.of_shape(&[None, Some(3)])?;
///     Ok(a.copy_to_vec()?.iter().sum())
/// }
///
/// assert_eq!(sum(floats().typed()?)?, 21.0);
/// # Ok::<(), Error>(())
/// ```
///
/// ```
#[doc = floats!()]
/// // What it says of itself; and demands, which return the view or refuse it.
/// let view = floats().transpose()?;
/// let a = view.typed::<f32>()?;
/// assert_eq!((a.shape(), a.elem_strides(), a.len()), (&[3, 2][..], &[1, 3][..], 6));
/// assert!(!a.is_empty() && a.cai().device() == Device::HOST);
/// assert!(a.clone().f_order().is_ok() && a.cuda().is_err());
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
pub struct View<'a, T> {
    array: Array<'a>,
    name: Name,
    elements: PhantomData<&'a [T]>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        Self {
            array: self.array.clone(),
            name: self.name,
            elements: PhantomData,
        }
    }
}

/// An array of elements `T`, borrowed mutably: it is known to be writable, and no element has two indices.
///
/// ```
#[doc = floats!()]
/// let mut view = floats();
/// let mut a = view.typed_mut::<f32>()?;
/// // SAFETY: the vector is there, and nothing else reads or writes it.
/// unsafe { a.host_slice_mut() }?[4] = 0.0;
/// assert_eq!(a.copy_to_vec()?, [1.0, 2.0, 3.0, 4.0, 0.0, 6.0]);
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
///
/// ```
#[doc = floats!()]
/// // As for a `View`, each demand takes the view, and returns or refuses it.
/// let mut view = floats();
/// let a = view.typed_mut::<f32>()?;
/// assert_eq!((a.shape(), a.elem_strides(), a.len()), (&[2, 3][..], &[3, 1][..], 6));
/// assert!(!a.is_empty() && a.cai().device() == Device::HOST);
/// let mut a = a.host()?.c_order()?.of_shape(&[None, Some(3)])?;
/// assert!(a.reborrow().f_order().is_err() && a.reborrow().cuda().is_err());
/// assert_eq!(a.as_mut_ptr().cast_const(), a.as_view().as_ptr());
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
pub struct ViewMut<'a, T> {
    array: ArrayMut<'a>,
    name: Name,
    elements: PhantomData<&'a mut [T]>,
}

/// The argument that a view is of, if its refusals name it.
#[derive(Clone, Copy)]
struct Name(Option<&'static str>);

impl Name {
    const NONE: Self = Self(None);

    /// Names the argument in the refusal of an array as such.
    #[cold]
    fn of(self, refused: Violation) -> Violation {
        match (self.0, refused.field()) {
            (Some(name), Field::Object) => refused.in_field(Field::Argument(name)),
            _ => refused,
        }
    }
}

impl<T> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("View").field(self.array.cai()).finish()
    }
}

impl<T> fmt::Debug for ViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ViewMut").field(self.array.cai()).finish()
    }
}

/// Checks the element type, and that the address suits it.
pub(crate) fn check_element(descriptor: &Descriptor, wanted: DType) -> Result<(), Violation> {
    if descriptor.dtype() != wanted {
        descriptor.check_dlpack()?;
        return Err(mismatch(
            Rule::ViewDtype,
            descriptor,
            format_args!("{wanted} is wanted"),
        ));
    }
    // The alignment behind a handle is the device's affair.
    let is_handle = descriptor.device().is_opaque();
    if is_handle || descriptor.data().is_multiple_of(u64::from(wanted.align())) {
        return Ok(());
    }
    let found = format_args!(
        "{:#x}, to be aligned to {} bytes",
        descriptor.data(),
        wanted.align()
    );
    Err(Violation::new(
        Rule::DataAlignment,
        Field::TensorData,
        found,
    ))
}

/// Checks that the data may be written, each element by one index.
pub(crate) fn check_writable(descriptor: &Descriptor) -> Result<(), Violation> {
    if descriptor.access() != Access::Writable {
        return Err(refuse_access(descriptor));
    }
    if descriptor.layout().is_self_overlapping() {
        let wanted = format_args!("one that may be written is wanted");
        return Err(mismatch(Rule::Overlap, descriptor, wanted));
    }
    Ok(())
}

#[cold]
fn refuse_access(came: &Descriptor) -> Violation {
    let wanted = match came.access() {
        Access::Unknown => {
            "one that may be written is wanted; read_only=False asserts that this one may be"
        }
        _ => "one that may be written is wanted",
    };
    mismatch(Rule::ReadOnlyWriter, came, format_args!("{wanted}"))
}

/// Makes a refusal that names what came and what is wanted.
#[cold]
pub(crate) fn mismatch(
    rule: Rule,
    came: &Descriptor,
    wanted: std::fmt::Arguments<'_>,
) -> Violation {
    Violation::new(rule, Field::Object, came).with_hint(wanted.to_string())
}

fn check_c_order(came: &Descriptor) -> Result<(), Violation> {
    if came.layout().is_c_contiguous() {
        return Ok(());
    }
    let wanted = format_args!("C order, the last axis fastest, is wanted");
    Err(mismatch(Rule::ViewContiguous, came, wanted))
}

fn check_f_order(came: &Descriptor) -> Result<(), Violation> {
    if came.layout().is_f_contiguous() {
        return Ok(());
    }
    let wanted = format_args!("Fortran order, the first axis fastest, is wanted");
    Err(mismatch(Rule::ViewContiguous, came, wanted))
}

fn check_contiguous(came: &Descriptor) -> Result<(), Violation> {
    if came.layout().is_c_contiguous() || came.layout().is_f_contiguous() {
        return Ok(());
    }
    let wanted = format_args!("C or Fortran order is wanted");
    Err(mismatch(Rule::ViewContiguous, came, wanted))
}

pub(crate) fn check_cuda(came: &Descriptor) -> Result<(), Violation> {
    if came.device().is_cuda_accessible() {
        return Ok(());
    }
    let wanted = format_args!("memory that CUDA devices can read is wanted");
    Err(mismatch(Rule::ViewDevice, came, wanted))
}

fn check_host(came: &Descriptor) -> Result<(), Violation> {
    if came.device().is_host_readable() {
        return Ok(());
    }
    let wanted = format_args!("memory that the host can read is wanted");
    Err(mismatch(Rule::ViewDevice, came, wanted))
}

fn check_device(came: &Descriptor, device: Device) -> Result<(), Violation> {
    if came.device() == device {
        return Ok(());
    }
    Err(mismatch(
        Rule::ViewDevice,
        came,
        format_args!("{device} is wanted"),
    ))
}

fn check_shape(came: &Descriptor, pattern: &[Option<usize>]) -> Result<(), Violation> {
    let fits = |(extent, wanted): (&i64, &Option<usize>)| {
        wanted.is_none_or(|wanted| usize::try_from(*extent) == Ok(wanted))
    };
    if came.ndim() == pattern.len() && came.shape().iter().zip(pattern).all(fits) {
        return Ok(());
    }
    let extents: Vec<_> = pattern
        .iter()
        .map(|extent| extent.map_or("any".to_owned(), |extent| extent.to_string()))
        .collect();
    let extents = extents.join(", ");
    let wanted = format_args!("the shape ({extents}) is wanted");
    Err(mismatch(Rule::ViewShape, came, wanted))
}

/// The methods of both kinds of view: questions, and demands that hand the view back.
macro_rules! demands {
    () => {
        /// Returns the array without its type.
        #[must_use]
        pub fn cai(&self) -> &CaiView {
            self.array.cai()
        }

        /// Returns the extents, in elements.
        #[must_use]
        pub fn shape(&self) -> &[usize] {
            self.cai().shape()
        }

        /// Returns one stride per axis, in elements.
        #[must_use]
        pub fn elem_strides(&self) -> &[isize] {
            self.cai().elem_strides()
        }

        /// Returns the number of elements.
        #[must_use]
        pub fn len(&self) -> usize {
            // Fits: the layout's size in bytes fits `i64`, and this is a 64-bit platform's crate.
            self.cai().descriptor().len() as usize
        }

        /// Returns whether there are no elements.
        #[must_use]
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Returns this view, whose refusals name it: the argument of the function, which the caller knows it by.
        ///
        /// ```
        #[doc = floats!()]
        /// let view = floats();
        /// let refused = view.typed::<f32>()?.named("weights").of_shape(&[Some(3), None]).unwrap_err();
        /// assert_eq!(refused.field().name(), "weights");
        /// assert!(refused.to_string().starts_with("argument 'weights' = float32 of shape [2, 3]"));
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        #[must_use]
        pub fn named(mut self, argument: &'static str) -> Self {
            self.name = Name(Some(argument));
            self
        }

        fn if_met(self, demand: Result<(), Violation>) -> Result<Self, Violation> {
            match demand {
                Ok(()) => Ok(self),
                Err(refused) => Err(self.name.of(refused)),
            }
        }

        /// Returns the refusal, which names this view if it is [named](Self::named).
        pub(crate) fn refusal(&self, refused: Error) -> Error {
            match refused {
                Error::Violation(refused) => self.name.of(refused).into(),
                other => other,
            }
        }

        /// Returns this view if its elements lie one after the other with the last axis fastest.
        ///
        /// # Errors
        /// `view-contiguous`.
        pub fn c_order(self) -> Result<Self, Violation> {
            let met = check_c_order(self.cai().descriptor());
            self.if_met(met)
        }

        /// Returns this view if its elements lie one after the other with the first axis fastest.
        ///
        /// # Errors
        /// `view-contiguous`.
        pub fn f_order(self) -> Result<Self, Violation> {
            let met = check_f_order(self.cai().descriptor());
            self.if_met(met)
        }

        /// Returns this view if its elements lie one after the other in either order.
        ///
        /// # Errors
        /// `view-contiguous`.
        ///
        /// ```
        #[doc = floats!()]
        /// let view = floats().transpose()?;
        /// assert!(view.typed::<f32>()?.contiguous().is_ok());
        /// assert!(view.typed::<f32>()?.c_order().is_err());
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn contiguous(self) -> Result<Self, Violation> {
            let met = check_contiguous(self.cai().descriptor());
            self.if_met(met)
        }

        /// Returns this view if CUDA devices can read it: device, pinned or managed memory.
        ///
        /// # Errors
        /// `view-device`.
        pub fn cuda(self) -> Result<Self, Violation> {
            let met = check_cuda(self.cai().descriptor());
            self.if_met(met)
        }

        /// Returns this view if the host can read it: memory of the CPU, pinned or managed.
        ///
        /// # Errors
        /// `view-device`.
        pub fn host(self) -> Result<Self, Violation> {
            let met = check_host(self.cai().descriptor());
            self.if_met(met)
        }

        /// Returns this view if it is on this very device.
        ///
        /// # Errors
        /// `view-device`.
        ///
        /// ```
        #[doc = floats!()]
        /// assert!(floats().typed::<f32>()?.on_device(Device::HOST).is_ok());
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn on_device(self, device: Device) -> Result<Self, Violation> {
            let met = check_device(self.cai().descriptor(), device);
            self.if_met(met)
        }

        /// Returns this view if it has these extents; `None` stands for any.
        ///
        /// # Errors
        /// `view-shape`.
        pub fn of_shape(self, pattern: &[Option<usize>]) -> Result<Self, Violation> {
            let met = check_shape(self.cai().descriptor(), pattern);
            self.if_met(met)
        }
    };
}

impl<'a, T: Element> View<'a, T> {
    /// Of an array whose type, alignment and memory have been checked.
    pub(crate) fn new(cai: &'a CaiView) -> Self {
        const { check_size::<T>() };
        Self {
            array: Array::Whole(cai),
            name: Name::NONE,
            elements: PhantomData,
        }
    }

    demands!();

    /// Returns the address of the element of index 0, dangling without elements. What it points to is ready
    /// only for work that is ordered after the ready stream.
    ///
    /// On a device with [handles](crate::protocol::device::Device::is_opaque) it is the handle: the element lies
    /// [`byte_offset`](crate::protocol::descriptor::Descriptor::byte_offset) bytes into what that stands for.
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        pointer_of(self.cai())
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// Of an array whose type, alignment, memory and layout have been checked.
    pub(crate) fn new(cai: &'a mut CaiView) -> Self {
        const { check_size::<T>() };
        Self {
            array: ArrayMut::Whole(cai),
            name: Name::NONE,
            elements: PhantomData,
        }
    }

    demands!();

    /// Returns the address of the element of index 0, dangling without elements. What it points to is ready
    /// only for work that is ordered after the ready stream.
    ///
    /// On a device with [handles](crate::protocol::device::Device::is_opaque) it is the handle: the element lies
    /// [`byte_offset`](crate::protocol::descriptor::Descriptor::byte_offset) bytes into what that stands for.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        pointer_of::<T>(self.cai()).cast_mut()
    }

    /// Returns a shared view, for as long as this one is not used.
    #[must_use]
    pub fn as_view(&self) -> View<'_, T> {
        View {
            name: self.name,
            ..View::new(self.cai())
        }
    }

    /// Returns a shorter mutable borrow of the same array.
    ///
    /// ```
    #[doc = floats!()]
    /// let mut view = floats();
    /// let mut a = view.typed_mut::<f32>()?;
    /// let row = a.reborrow().index(0, 0)?; // takes the reborrow, and not `a`
    /// assert_eq!(row.as_view().copy_to_vec()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(a.len(), 6);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    #[must_use]
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut {
            array: self.array.reborrow(),
            name: self.name,
            elements: PhantomData,
        }
    }

    /// Whether this is a part of an array, of which others may be written meanwhile.
    #[cfg(feature = "cudarc")]
    pub(crate) fn is_part(&self) -> bool {
        !matches!(self.array, ArrayMut::Whole(_))
    }

    /// Returns the array, which a writer's end [is noted in](ArrayMut::written). It may go to a thread to which the elements may
    /// not.
    #[cfg(any(test, feature = "cudarc"))]
    pub(crate) fn array_mut(&mut self) -> &mut ArrayMut<'a> {
        &mut self.array
    }
}

fn pointer_of<T>(cai: &CaiView) -> *const T {
    match cai.descriptor().data() {
        0 => std::ptr::dangling(),
        data => std::ptr::with_exposed_provenance(data as usize),
    }
}
