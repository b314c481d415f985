//! Arrays of memory that is there, of any element type, layout and kind of memory, beside what they must hold.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::random::{CONTEXT, Random};
use crate::driver::script::{self, Script};
use crate::driver::{MemoryKind, PointerInfo};
use crate::error::Error;
use crate::protocol::axes::{Axes, Source};
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, DeviceType, Flags};
use crate::protocol::dtype::{DType, TypeStr};
use crate::protocol::interface::{CaiInterface, DescrBuilder, Parts, Version};
use crate::protocol::stream::Stream;
use crate::view::{Bool, CaiView, Element, Owner};

const DEVICES: [Device; 4] = [
    Device::HOST,
    Device::cuda(0),
    Device::new(DeviceType::CUDA_HOST, 0),
    Device::new(DeviceType::CUDA_MANAGED, 0),
];
/// No Rust type has the last one: it is copied, and not read.
const DTYPES: [DType; 16] = [
    DType::BOOL,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F32,
    DType::F64,
    DType::C64,
    DType::C128,
    DType::F16,
    DType::BF16,
    DType::F8_E4M3FN,
];
/// The size of a record, and its fields: name, typestr, extent of an axis of its own, and where they begin.
const RECORD: usize = 16;
const FIELDS: [(&str, &str, i64, usize); 3] =
    [("x", "<f4", 0, 0), ("y", "<i2", 2, 4), ("z", "<u8", 0, 8)];

/// Memory that counts its end.
struct Memory {
    // No box: its unique pointer moves with it, and what was derived from it would end.
    values: Vec<u64>,
    driver: &'static Script,
    ended: Arc<AtomicUsize>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.driver
            .forget_pointer(self.values.as_ptr().addr() as u64);
        self.ended.fetch_add(1, Ordering::Release);
    }
}

/// What an array must hold: the bytes of its memory, which all arrays of that share, and where its elements are in them.
#[derive(Clone, Debug)]
pub(super) struct Content {
    bytes: Arc<Mutex<Vec<u8>>>,
    start: usize,
    /// Extents and byte strides.
    axes: Vec<(i64, i64)>,
    itemsize: usize,
    is_records: bool,
}

impl Content {
    /// In C order, in memory of its own.
    fn packed(bytes: Vec<u8>, shape: &[i64], itemsize: usize) -> Self {
        let mut next = itemsize as i64;
        let mut axes: Vec<_> = shape.iter().map(|extent| (*extent, 0)).collect();
        for (extent, stride) in axes.iter_mut().rev() {
            *stride = next;
            next *= *extent;
        }
        Self {
            bytes: Arc::new(Mutex::new(bytes)),
            start: 0,
            axes,
            itemsize,
            is_records: false,
        }
    }

    /// The elements in C order, as their places in the memory.
    fn places(&self) -> Vec<usize> {
        let mut places = vec![self.start as i64];
        for (extent, stride) in &self.axes {
            let steps = 0..*extent;
            let along = |place: &i64| {
                steps
                    .clone()
                    .map(|at| *place + at * stride)
                    .collect::<Vec<_>>()
            };
            places = places.iter().flat_map(along).collect();
        }
        places.into_iter().map(|place| place as usize).collect()
    }

    /// The places of all bytes of the elements.
    pub(super) fn all_places(&self) -> HashSet<usize> {
        let places = self.places().into_iter();
        places
            .flat_map(|place| place..place + self.itemsize)
            .collect()
    }

    fn elements(&self) -> Vec<u8> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let places = self.places().into_iter();
        places
            .flat_map(|place| bytes[place..place + self.itemsize].iter().copied())
            .collect()
    }

    /// Whether a byte of the memory from the first element to the last of one is such a byte of the other.
    pub(super) fn may_meet(&self, other: &Self) -> bool {
        let span = |content: &Self| {
            let places = content.places();
            let first = places.iter().min().copied()?;
            Some((first, places.iter().max().copied()? + content.itemsize))
        };
        match (span(self), span(other)) {
            (Some(one), Some(two)) => self.is_of(other) && one.0 < two.1 && two.0 < one.1,
            _ => false,
        }
    }

    /// Whether a byte of an element of one is of an element of the other; of records, of what lies between them too.
    pub(super) fn meets(&self, other: &Self) -> bool {
        match self.is_records || other.is_records {
            true => self.may_meet(other),
            false => self.is_of(other) && !self.all_places().is_disjoint(&other.all_places()),
        }
    }

    fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes)
    }
}

/// A view, and what it must show.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) view: CaiView,
    pub(super) content: Content,
}

/// Calls a function with the Rust type of an array's elements; [`None`] if there is none.
macro_rules! with_element {
    ($view:expr, $call:ident) => {
        match $view.descriptor().dtype() {
            DType::BOOL => Some($call::<Bool>($view)),
            DType::I8 => Some($call::<i8>($view)),
            DType::I16 => Some($call::<i16>($view)),
            DType::I32 => Some($call::<i32>($view)),
            DType::I64 => Some($call::<i64>($view)),
            DType::U8 => Some($call::<u8>($view)),
            DType::U16 => Some($call::<u16>($view)),
            DType::U32 => Some($call::<u32>($view)),
            DType::U64 => Some($call::<u64>($view)),
            DType::F32 => Some($call::<f32>($view)),
            DType::F64 => Some($call::<f64>($view)),
            DType::C64 => Some($call::<[f32; 2]>($view)),
            DType::C128 => Some($call::<[f64; 2]>($view)),
            #[cfg(feature = "half")]
            DType::F16 => Some($call::<half::f16>($view)),
            #[cfg(feature = "half")]
            DType::BF16 => Some($call::<half::bf16>($view)),
            _ => None,
        }
    };
}

fn read<T: Element>(view: &CaiView) -> Result<Vec<u8>, Error> {
    let is_other = T::DTYPE != DType::I8;
    assert!(!is_other || view.typed::<i8>().is_err(), "another type");
    let typed = view.typed::<T>()?;
    let copied = bytemuck::cast_slice(&typed.copy_to_vec()?).to_vec();
    if typed.clone().c_order().is_ok() {
        // SAFETY: the memory is there, nothing is pending on a stream, and only `Array::reverse` writes, on one thread.
        let slice = unsafe { typed.host_slice() }?;
        assert_eq!(bytemuck::cast_slice::<T, u8>(slice), copied);
    }
    Ok(copied)
}

fn reverse<T: Element>(view: &mut CaiView) -> Result<(), Error> {
    let mut typed = view.typed_mut::<T>()?;
    let mut again = typed.reborrow();
    // SAFETY: the memory is there, nothing is pending on a stream, and nothing else reads or writes it now.
    let elements = unsafe { again.host_slice_mut() }?;
    elements.reverse();
    Ok(())
}

fn lend<T: Element>(view: &CaiView) -> Result<(), Error> {
    view.typed::<T>().map(drop)
}

fn lend_mut<T: Element>(view: &mut CaiView) -> Result<(), Error> {
    view.typed_mut::<T>().map(drop)
}

impl Array {
    /// Another view of the same elements.
    pub(super) fn with(&self, view: CaiView) -> Self {
        Self {
            view,
            content: self.content.clone(),
        }
    }

    /// A copy of the elements.
    pub(super) fn copied(&self, view: CaiView) -> Self {
        let (shape, itemsize) = (view.descriptor().shape(), self.content.itemsize);
        let content = Content::packed(self.content.elements(), shape, itemsize);
        Self { view, content }
    }

    /// Asserts that the view describes, and shows, what it must.
    pub(super) fn check(&self) {
        let described = self.view.descriptor();
        let extents = self.content.axes.iter().map(|(extent, _)| *extent);
        assert!(described.shape().iter().copied().eq(extents));
        if self.content.is_records {
            return;
        }
        let byte_strides = described.byte_strides().expect("whole bytes");
        for ((extent, wanted), stride) in self.content.axes.iter().zip(byte_strides) {
            assert!(described.len() == 0 || *extent == 1 || *wanted == stride);
        }
        self.check_elements(&self.view);
        if let Ok(copy) = self.view.copy_to_host() {
            self.check_elements(&copy);
        }
    }

    fn check_elements(&self, view: &CaiView) {
        let Some(read) = with_element!(view, read) else {
            return;
        };
        let is_readable = view.device() == Device::HOST && view.ready() == Stream::None;
        assert!(read.is_ok() || !is_readable, "{read:?}");
        if let Ok(read) = read {
            assert_eq!(read, self.content.elements(), "{view:?}");
        }
    }

    /// Writes the elements in the opposite order, if the host may; only while no other thread has an array.
    pub(super) fn reverse(&mut self) {
        let view = &mut self.view;
        if !matches!(with_element!(view, reverse), Some(Ok(()))) {
            return;
        }
        let (old, size) = (self.content.elements(), self.content.itemsize);
        let new = old.rchunks(size.max(1)).flatten().copied();
        let mut bytes = (self.content.bytes.lock()).unwrap_or_else(PoisonError::into_inner);
        let end = self.content.start + old.len();
        bytes.splice(self.content.start..end, new);
    }

    /// Whether the elements are lent to be read, and to be written; `None` if Rust has no type for them.
    pub(super) fn is_lent(&mut self) -> Option<(bool, bool)> {
        let view = &mut self.view;
        let read = with_element!(view, lend)?;
        let written = with_element!(view, lend_mut)?;
        Some((read.is_ok(), written.is_ok()))
    }

    /// A field of records.
    pub(super) fn field(&self, random: &mut Random) -> Option<Self> {
        let (name, typestr, extent, offset) = FIELDS[random.below(FIELDS.len())];
        if !self.content.is_records {
            assert!(self.view.field(name, None).is_err(), "no records");
            return None;
        }
        assert!(self.view.field("w", None).is_err(), "no such field");
        let mut content = self.content.clone();
        content.is_records = false;
        content.start += offset;
        content.itemsize = TypeStr::parse(typestr).expect("a type").itemsize() as usize;
        if extent > 0 {
            content.axes.push((extent, content.itemsize as i64));
        }
        let view = self.view.field(name, None).expect("a field");
        Some(Self { view, content })
    }
}

/// Makes arrays of fresh memory.
pub(super) struct Maker {
    pub(super) driver: &'static Script,
    pub(super) made: usize,
    pub(super) ended: Arc<AtomicUsize>,
}

impl Maker {
    /// Makes an array of any element type, layout and kind of memory.
    pub(super) fn array(&mut self, random: &mut Random) -> Array {
        let dtype = DTYPES[random.below(DTYPES.len())];
        let itemsize = dtype.itemsize().expect("whole bytes") as i64;
        let shape: Vec<_> = (0..random.below(5)).map(|_| random.extent()).collect();
        let strides = strides(random, &shape);
        let reach = |sign: i64| -> i64 {
            let axes = shape.iter().zip(&strides);
            let ends = axes.map(|(extent, stride)| (extent - 1).max(0) * stride);
            ends.filter(|end| end * sign > 0).sum()
        };
        let (before, after) = (-reach(-1) + random.below(3) as i64, reach(1) + 1);
        let start = before * itemsize;
        let (device, ready, owner, base, bytes) =
            self.memory(random, (start + after * itemsize) as usize);
        let descriptor = Descriptor::new(&RawTensor {
            data: base,
            byte_offset: start as u64,
            device,
            code: dtype.code(),
            bits: dtype.bits(),
            lanes: dtype.lanes(),
            shape: &shape,
            strides: Some(&strides),
            flags: [Flags::NONE, Flags::NONE, Flags::READ_ONLY][random.below(3)],
        });
        let descriptor = descriptor.expect("a valid tensor");
        // SAFETY: the elements lie in the owner's memory; the scripted driver follows no stream.
        let view = unsafe { CaiView::new(descriptor, ready, owner) };
        let byte_strides = strides.iter().map(|stride| stride * itemsize);
        let content = Content {
            bytes: Arc::new(Mutex::new(bytes)),
            start: start as usize,
            axes: shape.iter().copied().zip(byte_strides).collect(),
            itemsize: itemsize as usize,
            is_records: false,
        };
        Array { view, content }
    }

    /// Makes an array of records, with gaps or without.
    pub(super) fn records(&mut self, random: &mut Random) -> Array {
        let shape: Vec<_> = (0..random.below(3)).map(|_| random.extent()).collect();
        let mut next = (RECORD * (1 + random.below(2))) as i64;
        let mut byte_strides = vec![0; shape.len()];
        for (stride, extent) in byte_strides.iter_mut().zip(&shape).rev() {
            *stride = next;
            next *= extent.max(&1);
        }
        let (device, ready, owner, base, bytes) = self.memory(random, next as usize);
        let typestr = TypeStr::parse("|V16").expect("a type");
        let mut fields = DescrBuilder::new();
        for (name, typestr, extent, _) in FIELDS {
            let shape = [extent];
            let shape = &shape[..usize::from(extent > 0)];
            fields.push(name, typestr, shape).expect("a field");
        }
        let described = CaiInterface::new(Parts {
            version: Version::V3,
            typestr,
            descr: fields.finish(typestr).expect("fields of the record's size"),
            axes: Axes::from_slices(Source::Cai, &shape, Some(&byte_strides)).expect("axes"),
            data: base,
            read_only: random.below(2) == 0,
            stream: ready,
        })
        .and_then(|interface| interface.describe(device));
        let descriptor = described.expect("valid records");
        // SAFETY: the records lie in the owner's memory; the scripted driver follows no stream.
        let view = unsafe { CaiView::new(descriptor, ready, owner) };
        let content = Content {
            bytes: Arc::new(Mutex::new(bytes)),
            start: 0,
            axes: shape.into_iter().zip(byte_strides).collect(),
            itemsize: RECORD,
            is_records: true,
        };
        Array { view, content }
    }

    /// Makes memory of a kind, with what it holds, that is ready on a stream.
    fn memory(
        &mut self,
        random: &mut Random,
        nbytes: usize,
    ) -> (Device, Stream, Owner, u64, Vec<u8>) {
        let words = nbytes.div_ceil(8).max(1);
        let mut values: Vec<u64> = (0..words).map(|_| random.next()).collect();
        let bytes = bytemuck::cast_slice(&values).to_vec();
        let base = values.as_mut_ptr().expose_provenance() as u64;
        let device = DEVICES[random.below(DEVICES.len())];
        let kind = match device.device_type {
            DeviceType::CUDA => MemoryKind::Device,
            DeviceType::CUDA_MANAGED => MemoryKind::Managed,
            _ => MemoryKind::Pinned,
        };
        if device != Device::HOST {
            let info = PointerInfo {
                kind,
                ordinal: 0,
                device_pointer: base,
                host_pointer: if kind == MemoryKind::Device { 0 } else { base },
                context: Some(script::context(CONTEXT)),
                range: Some((base, (words * 8) as u64)),
                mapped: true,
            };
            self.driver.pointer(base, info);
        }
        let ready = match device {
            Device::HOST => Stream::None,
            _ => random.stream(),
        };
        self.made += 1;
        let owner = Owner::new(Memory {
            values,
            driver: self.driver,
            ended: Arc::clone(&self.ended),
        });
        (device, ready, owner, base, bytes)
    }
}

/// Strides in elements: the axes in any order, some of them with gaps, backwards or broadcast.
fn strides(random: &mut Random, shape: &[i64]) -> Vec<i64> {
    let mut order: Vec<_> = (0..shape.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at + 1));
    }
    let (mut next, mut strides) = (1, vec![0; shape.len()]);
    for axis in order {
        next *= 1 + i64::from(random.below(4) == 0);
        strides[axis] = match random.below(10) {
            0 => 0,
            1 | 2 => -next,
            _ => next,
        };
        next *= shape[axis].max(1);
    }
    strides
}
