//! Any tensor, whose shape and strides end where a page without access begins: what is read lies inside.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use cai_dlpack::CaiView;
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{DLManagedTensorVersioned, LiveStream};

use crate::bytes::Bytes;

const PAGE: usize = 4096;

static DELETED: AtomicU32 = AtomicU32::new(0);

/// `DLManagedTensorVersioned`, as DLPack 1.3 lays it out.
#[repr(C)]
struct Tensor {
    version: [u32; 2],
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    flags: u64,
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

const _: () = assert!(size_of::<Tensor>() == size_of::<DLManagedTensorVersioned>());

/// A page, and one behind it that nothing may read.
struct Guarded(*mut u8);

impl Guarded {
    fn new() -> Self {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping, wherever the kernel puts it.
        let pages = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED);
        let pages = pages.cast::<u8>();
        // SAFETY: the second page of the mapping above.
        let done = unsafe { libc::mprotect(pages.add(PAGE).cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(done, 0);
        Self(pages)
    }

    /// Writes the numbers so that the last one ends `off` bytes before the guarded page.
    fn put(&self, numbers: &[i64], off: usize) -> *mut i64 {
        let at = self
            .0
            .wrapping_add(PAGE - 8 * numbers.len() - off)
            .cast::<i64>();
        for (index, number) in numbers.iter().enumerate() {
            // SAFETY: inside the first page, as there are few numbers; alignment is not asked for.
            unsafe { at.wrapping_add(index).write_unaligned(*number) };
        }
        at
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, of which nothing is used any more.
        unsafe { libc::munmap(self.0.cast(), 2 * PAGE) };
    }
}

unsafe extern "C" fn deleter(_: *mut DLManagedTensorVersioned) {
    DELETED.fetch_add(1, Ordering::Relaxed);
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let numbers = bytes.numbers(8);
    let dtype = bytes.one_of(DType::ALL);
    let (shape, strides) = (Guarded::new(), Guarded::new());
    // DLPack aligns int64 as C does; a producer that does not is refused.
    let off = if bytes.byte() % 4 == 0 {
        usize::from(bytes.byte() % 8)
    } else {
        0
    };
    let elem_strides: Vec<i64> = numbers.iter().map(|_| bytes.number()).collect();
    let mut tensor = Box::new(Tensor {
        version: [
            if bytes.byte() % 16 == 0 {
                u32::from(bytes.byte())
            } else {
                1
            },
            u32::from(bytes.byte() % 5),
        ],
        manager_ctx: ptr::null_mut(),
        deleter: bytes.byte().ge(&16).then_some(deleter),
        flags: u64::from(bytes.byte() % 16),
        data: ptr::without_provenance_mut(bytes.number().cast_unsigned() as usize),
        device: [
            bytes.one_of(&[1, 2, 3, 13, 10]),
            i32::from(bytes.byte() % 3),
        ],
        ndim: match bytes.byte() % 32 {
            1 => -1,
            _ => i32::try_from(numbers.len()).expect("few"),
        },
        code: dtype.code(),
        bits: dtype.bits(),
        lanes: dtype.lanes(),
        shape: if bytes.byte() % 16 == 1 {
            ptr::null_mut()
        } else {
            shape.put(&numbers, off)
        },
        strides: if bytes.flag() {
            strides.put(&elem_strides, off)
        } else {
            ptr::null_mut()
        },
        byte_offset: if bytes.byte() % 4 == 1 {
            bytes.number().cast_unsigned()
        } else {
            0
        },
    });
    let has_deleter = tensor.deleter.is_some();
    let before = DELETED.load(Ordering::Relaxed);
    // SAFETY: an initialised tensor, ours until the view and what is made of it are gone, which is below; its axes are
    // readable up to `ndim`, the deleter counts, and nothing follows the data's address.
    let view = unsafe {
        CaiView::from_dlpack_ptr(
            (&raw mut *tensor).cast::<DLManagedTensorVersioned>(),
            Stream::None,
        )
    };
    if let Ok(view) = view {
        assert!(
            numbers.is_empty() || off == 0,
            "axes that are not aligned are refused"
        );
        crate::descriptor::check(view.descriptor(), &numbers);
        let again = view.clone();
        let exported = again.to_dlpack(LiveStream::NONE).is_ok()
            | again.to_dlpack_legacy(LiveStream::NONE).is_ok();
        let _ = (again.interface(), exported);
        drop(view);
        assert_eq!(
            DELETED.load(Ordering::Relaxed),
            before,
            "the clone keeps the tensor"
        );
    }
    let deleted = DELETED.load(Ordering::Relaxed) - before;
    assert_eq!(
        deleted,
        u32::from(has_deleter),
        "the deleter is called once"
    );
}
