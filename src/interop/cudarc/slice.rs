//! Contiguous arrays on a stream, as cudarc's own functions take them; and cudarc's slices as views.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    DriverError, SyncOnDrop,
};

use super::events;
use super::guard::{Consume, StreamGuard};
use super::in_context::{InContext, is_captured, wait_for_context, within, without_noted};
use super::keep;
use super::stream::{number_of, plain_number};
use crate::error::Error;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Access, Device};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::view::keep::Begun;
use crate::view::{CaiView, Element, Owner, ViewMut, check_len, detach, extents};

/// The elements of a contiguous array on a stream, for cudarc's copies and libraries ([`StreamGuard::as_slice`]).
///
/// On the guard's stream cudarc's functions enqueue nothing but their work. On another stream they wait
/// for the guard's first, and the host waits for them when they are done, as cudarc knows no other way
/// to be asked back, and for all work of their context at the end of the guard: use the guard's stream.
///
/// ```no_run
/// use std::sync::Arc;
/// use cai_dlpack::{Error, view::{View, ViewMut}};
/// use cudarc::driver::CudaStream;
///
/// /// Both are foreign arrays.
/// fn copy(from: View<'_, f32>, to: ViewMut<'_, f32>, stream: &Arc<CudaStream>) -> Result<(), Error> {
///     let (mut from, mut to) = (from.on(stream)?, to.on(stream)?);
///     stream.memcpy_dtod(&from.as_slice()?, &mut to.as_slice()?)?;
///     Ok(())
/// }
/// # let _ = copy;
/// ```
#[derive(Debug)]
pub struct StreamSlice<'g, 's, V: Consume>(&'g mut StreamGuard<'s, V>);

impl<'s, V: Consume> StreamGuard<'s, V> {
    /// Returns the elements as cudarc's own functions take them, which want them contiguous.
    ///
    /// # Errors
    /// `view-contiguous`.
    ///
    /// ```no_run
    /// use cai_dlpack::view::View;
    /// # use std::sync::Arc;
    /// # use cudarc::driver::CudaStream;
    ///
    /// fn download(a: View<'_, f32>, stream: &Arc<CudaStream>) -> Result<Vec<f32>, cai_dlpack::Error> {
    ///     Ok(stream.clone_dtoh(&a.on(stream)?.as_slice()?)?)
    /// }
    /// # let _ = download;
    /// ```
    pub fn as_slice(&mut self) -> Result<StreamSlice<'_, 's, V>, Violation> {
        let came = self.array().descriptor();
        if came.layout().is_c_contiguous() || came.layout().is_f_contiguous() {
            return Ok(StreamSlice(self));
        }
        let found = format_args!(
            "strides {:?} of shape {:?}",
            came.elem_strides(),
            came.shape()
        );
        Err(Violation::new(Rule::ViewContiguous, Field::Object, found))
    }
}

/// Lends foreign memory as a slice of cudarc's, for functions that take nothing else.
///
/// cudarc orders the uses of a slice by two events of its own. It knows neither the producer nor its stream, and its drop
/// frees the memory: the slice is taken apart instead, which makes the guard's stream wait for the last read and the last
/// write. An earlier read on a third stream is forgotten: nothing that the guard does then comes after it.
impl<V: Consume> StreamGuard<'_, V> {
    /// Calls `body` with the elements as a [`CudaSlice`], which the return edge does not track on other streams.
    ///
    /// Of work on the guard's stream the edge is as ever. Prefer [`as_slice`](Self::as_slice) for what takes a
    /// [`DevicePtr`].
    ///
    /// # Errors
    /// `view-contiguous`.
    ///
    /// # Panics
    /// cudarc panics if no event can be made.
    ///
    /// # Safety
    /// - Before `body` returns, the guard's stream has been made to wait for what `body` has enqueued on other streams, or
    ///   that is done.
    /// - No capture of the guard's stream begins in `body` and ends in it: its graph does not keep the array.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use cai_dlpack::view::View;
    /// use cudarc::driver::{CudaSlice, CudaStream, DriverError};
    ///
    /// /// A function of another crate.
    /// fn sum(values: &CudaSlice<f32>) -> Result<f32, DriverError> {
    ///     Ok(values.stream().clone_dtoh(values)?.iter().sum())
    /// }
    ///
    /// fn sum_of(a: View<'_, f32>, stream: &Arc<CudaStream>) -> Result<f32, cai_dlpack::Error> {
    ///     // SAFETY: `sum` works on the slice's stream alone, which is the guard's.
    ///     Ok(unsafe { a.on(stream)?.with_untracked_slice(sum) }??)
    /// }
    /// # let _ = sum_of;
    /// ```
    pub unsafe fn with_untracked_slice<R>(
        &mut self,
        body: impl FnOnce(&CudaSlice<V::Element>) -> R,
    ) -> Result<R, Violation> {
        self.lend(|slice| body(slice))
    }

    /// Calls `body` with the elements as a [`CudaView`]; see [`with_untracked_slice`](Self::with_untracked_slice).
    ///
    /// # Errors
    /// `view-contiguous`.
    ///
    /// # Panics
    /// As [`with_untracked_slice`](Self::with_untracked_slice).
    ///
    /// # Safety
    /// The list of [`with_untracked_slice`](Self::with_untracked_slice).
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use cai_dlpack::view::View;
    /// use cudarc::driver::{CudaStream, CudaView, DriverError};
    ///
    /// /// A function of another crate.
    /// fn first(values: CudaView<'_, f32>, stream: &Arc<CudaStream>) -> Result<Vec<f32>, DriverError> {
    ///     stream.clone_dtoh(&values.slice(..1))
    /// }
    ///
    /// fn first_of(a: View<'_, f32>, stream: &Arc<CudaStream>) -> Result<f32, cai_dlpack::Error> {
    ///     // SAFETY: `first` works on the guard's stream.
    ///     Ok(unsafe { a.on(stream)?.with_untracked_view(|values| first(values, stream)) }??[0])
    /// }
    /// # let _ = first_of;
    /// ```
    pub unsafe fn with_untracked_view<R>(
        &mut self,
        body: impl FnOnce(CudaView<'_, V::Element>) -> R,
    ) -> Result<R, Violation> {
        self.lend(|slice| body(slice.as_view()))
    }

    fn lend<R>(
        &mut self,
        body: impl FnOnce(&mut CudaSlice<V::Element>) -> R,
    ) -> Result<R, Violation> {
        let elements = self.as_slice()?;
        let (len, own) = (elements.len(), Arc::clone(elements.stream()));
        // On the guard's own thread this enqueues nothing.
        let (pointer, done) = elements.pointer_on(&own);
        let lend = |_| {
            // SAFETY: room for `len` elements, of which every pattern of bits is a value, as long as the guard lives; it is
            // never dropped as a slice, which would free the memory (`Lent`).
            let slice = unsafe { own.upgrade_device_ptr(pointer, len) };
            let mut lent = Lent(ManuallyDrop::new(slice));
            // The work of another stream on the slice comes after the data.
            events::note_write(&mut lent.0);
            lent
        };
        let mut lent: Lent<V::Element> = detach(|| within(Arc::clone(own.context()), lend));
        let _kept = KeptInGraph(elements.0, &own);
        let found = body(&mut lent.0);
        drop((lent, done));
        Ok(found)
    }
}

/// Has the graph keep the owner, at its end, that the stream is being captured into by then.
struct KeptInGraph<'g, 's, V: Consume>(&'g StreamGuard<'s, V>, &'g CudaStream);

impl<V: Consume> Drop for KeptInGraph<'_, '_, V> {
    fn drop(&mut self) {
        self.0.keep_in_graph(self.1);
    }
}

impl<T: Element> StreamGuard<'_, ViewMut<'_, T>> {
    /// Calls `body` with the elements as a [`CudaViewMut`]; see [`with_untracked_slice`](Self::with_untracked_slice).
    ///
    /// # Errors
    /// `view-contiguous`.
    ///
    /// # Panics
    /// As [`with_untracked_slice`](Self::with_untracked_slice).
    ///
    /// # Safety
    /// The list of [`with_untracked_slice`](Self::with_untracked_slice).
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use cai_dlpack::view::ViewMut;
    /// use cudarc::driver::{CudaStream, CudaViewMut, DriverError};
    ///
    /// /// A function of another crate.
    /// fn clear(mut values: CudaViewMut<'_, f32>, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
    ///     stream.memset_zeros(&mut values)
    /// }
    ///
    /// fn cleared(a: ViewMut<'_, f32>, stream: &Arc<CudaStream>) -> Result<(), cai_dlpack::Error> {
    ///     // SAFETY: `clear` works on the guard's stream.
    ///     Ok(unsafe { a.on(stream)?.with_untracked_view_mut(|values| clear(values, stream)) }??)
    /// }
    /// # let _ = cleared;
    /// ```
    pub unsafe fn with_untracked_view_mut<R>(
        &mut self,
        body: impl FnOnce(CudaViewMut<'_, T>) -> R,
    ) -> Result<R, Violation> {
        // Not the slice: one that is exchanged for another by `mem::swap` would be freed with that one.
        self.lend(|slice| body(slice.as_view_mut()))
    }
}

/// A slice of memory that is not cudarc's: it is taken apart, and not dropped.
struct Lent<T>(ManuallyDrop<CudaSlice<T>>);

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, as this runs once, and not used afterwards.
        let slice = unsafe { ManuallyDrop::take(&mut self.0) };
        detach(|| within(Arc::clone(slice.context()), |_| slice.leak()));
    }
}

impl<V: Consume> StreamSlice<'_, '_, V> {
    /// Returns the address, for work on `stream`.
    fn pointer_on<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let own = self.0.stream();
        if !self.0.is_elsewhere() && stream == &**own {
            self.0.keep_in_graph(own);
            self.0.note_asked();
            return (self.0.pointer(), SyncOnDrop::Record(None));
        }
        if let Err(refused) = self.order(stream) {
            // The work that is enqueued next is not ordered, and cannot be refused here: cudarc's call after it tells this.
            stream.context().record_err::<()>(Err(refused));
        }
        self.0.note_other(stream.context());
        self.0.keep_in_graph(stream);
        (self.0.pointer(), SyncOnDrop::sync_stream(stream))
    }

    /// Makes `stream` wait for the guard's; or else the host, for that or for its whole context.
    fn order(&self, stream: &CudaStream) -> Result<(), DriverError> {
        let (own, array) = (self.0.stream(), self.0.array());
        if self.0.is_elsewhere() {
            // The number of its stream means another stream here.
            let has_waited =
                detach(|| wait_for_context(own.context(), Some(array.owner()))).is_ok();
            return match has_waited {
                true => Ok(()),
                false => Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)),
            };
        }
        let (owner, device) = (array.owner(), array.device());
        let join = || without_noted(own.context(), || stream.join(own));
        detach(|| {
            without_noted(stream.context(), join).or_else(|refused| {
                match keep::wait_or_keep(owner, device, own, Begun::OnStream) {
                    Ok(true) => Ok(()),
                    _ => Err(refused),
                }
            })
        })
    }
}

impl<V: Consume> DeviceSlice<V::Element> for StreamSlice<'_, '_, V> {
    fn len(&self) -> usize {
        self.0.array().descriptor().len() as usize
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.0.stream()
    }
}

impl<V: Consume> DevicePtr<V::Element> for StreamSlice<'_, '_, V> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.pointer_on(stream)
    }
}

impl<T: Element> DevicePtrMut<T> for StreamSlice<'_, '_, ViewMut<'_, T>> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.pointer_on(stream)
    }
}

impl CaiView {
    /// Makes a view of a slice of cudarc's, in C order, writable, and ready after the slice's last write that cudarc has recorded.
    ///
    /// cudarc 0.19.10 records no use on a stream whose own `CudaContext` has no stream of its making at that time: a default
    /// stream of another `CudaContext` or thread, or a borrowed stream. The slice's stream has to wait for such a one
    /// (`stream.join(&other)`) before.
    ///
    /// The slice's own stream is the ready stream and the producer stream. The slice is dropped with the
    /// last view and tensor of it, in its own context whatever is current then; what is current stays.
    /// cudarc frees it on its own stream, so a consumer on another stream either makes the return edge
    /// or is done by then.
    ///
    /// # Errors
    /// `shape-override` if the extents do not make up the slice's length; the rules of shapes;
    /// `stream-device` for the default stream of a context that is not its device's primary one; `capture-consumer` if
    /// the slice's stream is being captured; the driver's refusal to make it wait for the last use of the slice.
    ///
    /// ```no_run
    /// use cai_dlpack::CaiView;
    /// use cai_dlpack::interop::cudarc::context;
    ///
    /// let stream = context(0)?.new_stream()?;
    /// let view = CaiView::from_cudarc(stream.alloc_zeros::<f32>(6)?, [2, 3])?;
    /// assert_eq!(view.descriptor().shape(), [2, 3]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn from_cudarc<T: Element>(
        slice: CudaSlice<T>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, Error> {
        let shape = extents(shape.as_ref())?;
        let whole = slice.len();
        let view = part(Arc::new(slice), 0, &shape, None)?;
        check_len(view.descriptor(), whole)?;
        Ok(view)
    }

    /// Makes a view of a part of a slice of cudarc's; `offset` and `elem_strides` are in elements.
    ///
    /// Takes the slice, or an `Arc` of it for several parts of one. A slice that other code can still
    /// reach (through the `Arc`) is read-only in the view: its holder expects no writes.
    /// The rest is as in [`CaiView::from_cudarc`].
    ///
    /// # Errors
    /// `out-of-bounds` if an element lies outside the slice; the rules of shapes and strides.
    ///
    /// ```no_run
    /// use cai_dlpack::CaiView;
    /// use cai_dlpack::interop::cudarc::context;
    ///
    /// let stream = context(0)?.new_stream()?;
    /// let slice = stream.alloc_zeros::<f32>(12)?;
    /// // The second of four columns of three.
    /// let column = CaiView::from_cudarc_part(slice, 1, [3], [4])?;
    /// assert_eq!(column.descriptor().elem_strides(), [4]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn from_cudarc_part<T: Element>(
        slice: impl Into<Arc<CudaSlice<T>>>,
        offset: usize,
        shape: impl AsRef<[usize]>,
        elem_strides: impl AsRef<[isize]>,
    ) -> Result<Self, Error> {
        let strides: Vec<i64> = elem_strides.as_ref().iter().map(|s| *s as i64).collect();
        part(
            slice.into(),
            offset,
            &extents(shape.as_ref())?,
            Some(&strides),
        )
    }
}

fn part<T: Element>(
    slice: Arc<CudaSlice<T>>,
    offset: usize,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Result<CaiView, Error> {
    // A slice that is refused ends as one that a view has had.
    let mut owned = InContext::new(slice);
    let stream = Arc::clone(owned.value().stream());
    owned = owned.on(plain_number(&stream));
    let (ready, context) = (number_of(&stream)?, stream.context());
    let slice = owned.value();
    let (data, is_shared) = within(Arc::clone(context), |driver| {
        // An event from outside of the capture would break that, if it were waited for.
        if context.is_event_tracking() && is_captured(driver?, ready)? {
            let refused = Violation::new(Rule::CaptureConsumer, Field::Argument("stream"), ready);
            let hint = "make the view of the slice before the capture of its stream begins";
            return Err(Error::from(refused.with_hint(hint)));
        }
        // Its own stream waits for the last write, wherever that was; and before it is written anew, for reads.
        Ok(match Arc::get_mut(slice) {
            Some(slice) => (events::wait_for_all(slice)?, false),
            None => (events::wait_for_writes(slice)?, true),
        })
    })?;
    let descriptor =
        describe::<T>(data, offset, shape, strides, slice)?.with_access(Access::of_flag(is_shared));
    check_part(&descriptor, data, slice)?;
    let owner = Owner::new(owned.with_readers());
    // SAFETY: every element lies in the slice (`check_part`), which the owner keeps, and with it its
    // stream; device memory of the slice's device, of which nobody else has a `&mut`.
    let view = unsafe { CaiView::new(descriptor, ready, owner) };
    Ok(view.on_producer(ready))
}

fn describe<T: Element>(
    data: CUdeviceptr,
    offset: usize,
    shape: &[i64],
    strides: Option<&[i64]>,
    slice: &CudaSlice<T>,
) -> Result<Descriptor, Violation> {
    let device = Device::cuda(slice.ordinal() as i32);
    let byte_offset = (offset as u64).saturating_mul(size_of::<T>() as u64);
    Descriptor::new(&RawTensor {
        strides,
        ..RawTensor::new(data, device, T::DTYPE, shape).with_byte_offset(byte_offset)
    })
}

fn check_part<T>(part: &Descriptor, start: u64, slice: &CudaSlice<T>) -> Result<(), Violation> {
    let end = start + slice.num_bytes() as u64;
    match part.byte_span() {
        Some((first, last)) if first < start || last > end => {
            let found = format_args!("bytes {first:#x} to {last:#x}");
            let hint = format!("the slice is {start:#x} to {end:#x}");
            Err(Violation::new(Rule::OutOfBounds, Field::Argument("shape"), found).with_hint(hint))
        }
        _ => Ok(()),
    }
}
