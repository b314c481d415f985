//! Tensors to and from a C library, and to and from another crate, with no Python anywhere.

use std::ffi::{CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Access, Device, Flags};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{
    DLManagedTensor, DLManagedTensorVersioned, DlpackTensor, LiveStream, Owner,
};
use cai_dlpack::{CaiView, Error};

use crate::arrays::Array;

/// Declares the functions of `neighbour.c`.
macro_rules! neighbour {
    ($($name:ident: fn($($parameter:ty),*) $(-> $result:ty)?;)*) => {
        struct Neighbour {
            $($name: unsafe extern "C" fn($($parameter),*) $(-> $result)?,)*
        }

        impl Neighbour {
            fn load(library: &Path) -> Self {
                let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("a path");
                // SAFETY: the library has no initialisers.
                let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
                assert!(!library.is_null(), "{path:?} is loaded");
                Self {
                    $($name: {
                        let name = CString::new(stringify!($name)).expect("a name");
                        // SAFETY: a library that stays open.
                        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                        assert!(!found.is_null(), "{name:?}");
                        // SAFETY: the signature is the one in neighbour.c.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($parameter),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                }
            }
        }
    };
}

neighbour! {
    c_make: fn(i64, i64) -> *mut DLManagedTensorVersioned;
    c_make_legacy: fn(i64, i64) -> *mut DLManagedTensor;
    c_make_major: fn(u32) -> *mut DLManagedTensorVersioned;
    c_make_ndim: fn(i32) -> *mut DLManagedTensorVersioned;
    c_sum: fn(*const DLManagedTensorVersioned) -> f64;
    c_release: fn(*mut DLManagedTensorVersioned);
    c_release_on_thread: fn(*mut DLManagedTensorVersioned);
    c_deleted: fn() -> c_int;
}

/// The C library, compiled once for this run.
fn neighbour() -> &'static Neighbour {
    static LOADED: OnceLock<Neighbour> = OnceLock::new();
    LOADED.get_or_init(|| Neighbour::load(&compile()))
}

fn compile() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/rust/neighbour.c");
    let library =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("neighbour-{}.so", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(&compiler)
        .args([
            "-std=c11", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", "-o",
        ])
        .args([library.as_os_str(), source.as_ref()])
        .status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "{compiler:?} compiles neighbour.c (these tests need a C compiler; CC names another one)"
    );
    library
}

/// How many tensors `body` had the C library delete.
fn deletions(body: impl FnOnce(&Neighbour)) -> c_int {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let c = neighbour();
    // SAFETY: reads a counter.
    let before = unsafe { (c.c_deleted)() };
    body(c);
    // SAFETY: as above.
    let after = unsafe { (c.c_deleted)() };
    after - before
}

fn rule(answer: Result<CaiView, Error>) -> Rule {
    match answer {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tensor_of_c_is_read_and_deleted_once() {
    let deleted = deletions(|c| {
        // SAFETY: plain numbers.
        let tensor = unsafe { (c.c_make)(2, 3) };
        // SAFETY: a fresh tensor of neighbour.c, given away.
        let view = unsafe { CaiView::from_dlpack_ptr(tensor, Stream::None) }.expect("a view");
        let values = view.typed::<f32>().expect("floats").copy_to_vec();
        assert_eq!(values.expect("a copy"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let shared = view.owner().share();
        drop(view);
        drop(shared);
    });
    assert_eq!(deleted, 1);
}

#[test]
fn a_legacy_tensor_without_strides_too() {
    let deleted = deletions(|c| {
        // SAFETY: plain numbers.
        let tensor = unsafe { (c.c_make_legacy)(3, 2) };
        // SAFETY: a fresh tensor of neighbour.c, given away.
        let view = unsafe { CaiView::from_dlpack_ptr(tensor, Stream::None) }.expect("a view");
        assert_eq!(view.descriptor().elem_strides(), [2, 1]);
    });
    assert_eq!(deleted, 1);
}

#[test]
fn what_is_refused_is_deleted_all_the_same() {
    let deleted = deletions(|c| {
        // SAFETY: plain numbers.
        let newer = unsafe { (c.c_make_major)(2) };
        // SAFETY: plain numbers.
        let broken = unsafe { (c.c_make_ndim)(-1) };
        for (tensor, expected) in [(newer, Rule::DlpackMajor), (broken, Rule::NdimNegative)] {
            // SAFETY: a fresh tensor of neighbour.c, given away.
            let refused = unsafe { CaiView::from_dlpack_ptr(tensor, Stream::None) };
            assert_eq!(rule(refused), expected);
        }
    });
    assert_eq!(deleted, 2);
}

#[test]
fn null_is_no_tensor() {
    let tensor = std::ptr::null_mut::<DLManagedTensor>();
    // SAFETY: NULL is allowed.
    let refused = unsafe { CaiView::from_dlpack_ptr(tensor, Stream::None) };
    assert_eq!(rule(refused), Rule::CapsuleNull);
}

/// Counts its own end.
struct Counted(
    Arc<AtomicUsize>,
    #[expect(dead_code, reason = "kept alive")] Vec<f32>,
);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A transposed matrix of 0 to 5 that counts how often it is freed.
fn counted(ends: &Arc<AtomicUsize>) -> CaiView {
    let values: Vec<f32> = (0_u8..6).map(f32::from).collect();
    let descriptor = Descriptor::new(
        &RawTensor::new(
            values.as_ptr().expose_provenance() as u64,
            Device::HOST,
            DType::F32,
            &[3, 2],
        )
        .with_elem_strides(&[1, 3]),
    );
    let owner = Owner::new(Counted(Arc::clone(ends), values));
    // SAFETY: the owner keeps the values.
    unsafe { CaiView::new(descriptor.expect("a tensor"), Stream::None, owner) }
}

#[test]
fn c_reads_our_tensor_and_deletes_it_on_its_own_thread() {
    let (c, ends) = (neighbour(), Arc::new(AtomicUsize::new(0)));
    let view = counted(&ends);
    let first = view
        .to_dlpack(LiveStream::NONE)
        .expect("a tensor")
        .into_raw();
    let second = view
        .to_dlpack(LiveStream::NONE)
        .expect("a tensor")
        .into_raw();
    drop(view);
    for tensor in [first, second] {
        // SAFETY: a tensor of ours, which we hold.
        assert_eq!(unsafe { (c.c_sum)(tensor) }, 15.0);
    }
    assert_eq!(ends.load(Ordering::SeqCst), 0);
    // SAFETY: ours to delete, once.
    unsafe { (c.c_release)(first) };
    assert_eq!(ends.load(Ordering::SeqCst), 0);
    // SAFETY: as above.
    unsafe { (c.c_release_on_thread)(second) };
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

#[test]
fn a_tensor_goes_from_crate_to_crate_and_back() {
    let ends = Arc::new(AtomicUsize::new(0));
    let mut view = counted(&ends);
    for _ in 0..3 {
        let tensor: DlpackTensor = view.to_dlpack(LiveStream::NONE).expect("a tensor");
        view = CaiView::from_dlpack(tensor, LiveStream::NONE).expect("a view");
        let legacy = view.to_dlpack_legacy(LiveStream::NONE).expect("a tensor");
        view = CaiView::from_dlpack(legacy, LiveStream::NONE).expect("a view");
        // The legacy tensor has no flag, so that the next versioned one would state that it is read-only.
        assert_eq!(view.descriptor().access(), Access::Unknown);
        // SAFETY: the values of `counted`, which may be written.
        view = unsafe { view.with_access(Access::Writable) };
    }
    let values = view.typed::<f32>().expect("floats").copy_to_vec();
    assert_eq!(values.expect("a copy"), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(ends.load(Ordering::SeqCst), 0);
    drop(view);
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

/// "Copied" says that the consumer is alone with the data (dlpack.h, `DLPACK_FLAG_BITMASK_IS_COPIED`): of
/// two tensors over one memory neither is.
#[test]
fn a_copy_that_is_handed_on_is_no_copy() {
    let ends = Arc::new(AtomicUsize::new(0));
    let tensor = counted(&ends)
        .to_dlpack(LiveStream::NONE)
        .expect("a tensor");
    let mut tensor = tensor.into_managed();
    // SAFETY: nobody else holds the values.
    *unsafe { tensor.flags_mut() } |= dlpark::DlpackFlags::IS_COPIED;
    // SAFETY: the tensor that the view made, with another flag.
    let tensor = unsafe { DlpackTensor::new(tensor) };
    let view = CaiView::from_dlpack(tensor, LiveStream::NONE).expect("a view");
    assert!(view.descriptor().flags().contains(Flags::IS_COPIED));
    let first = view.to_dlpack(LiveStream::NONE).expect("a tensor");
    let second = view.to_dlpack(LiveStream::NONE).expect("a tensor");
    for tensor in [first, second] {
        assert!(!tensor.flags().contains(dlpark::DlpackFlags::IS_COPIED));
    }
}

/// A legacy tensor has no flags, so that its reader would take padded elements for packed ones.
#[test]
fn padded_elements_are_in_no_legacy_tensor() {
    let values = [0_u8; 16];
    let int4 = |flags: Flags| {
        let raw = RawTensor::new(
            values.as_ptr().expose_provenance() as u64,
            Device::HOST,
            DType::from_dlpack(0, 4, 1).expect("int4"),
            &[4, 4],
        )
        .with_flags(flags);
        let descriptor = Descriptor::new(&raw).expect("a tensor");
        // SAFETY: the array outlives the view, and 16 bytes are room for padded elements and for packed ones.
        unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) }
    };
    let padded = int4(Flags::SUBBYTE_PADDED);
    let refused = padded.to_dlpack_legacy(LiveStream::NONE).err();
    let refused = refused.expect("no flags");
    assert!(refused.to_string().contains("[padded-legacy]"), "{refused}");
    let tensor = padded.to_dlpack(LiveStream::NONE).expect("a tensor");
    assert_eq!(tensor.flags().bits(), Flags::SUBBYTE_PADDED.bits());
    assert!(int4(Flags::NONE).to_dlpack_legacy(LiveStream::NONE).is_ok());
}

// --- dlpack-rs (kornia), which has structs of its own for the same binary layout ---

#[test]
fn dlpack_rs_makes_a_tensor_for_us() {
    use dlpack_rs::safe::{TensorInfo, cpu_device, dtype_f32, pack, pack_versioned};
    let ends = Arc::new(AtomicUsize::new(0));
    let make = || {
        let mut values = vec![1.0_f32, 2.0, 3.0];
        let data = values.as_mut_ptr();
        let info = TensorInfo::contiguous(data.cast(), cpu_device(), dtype_f32(), vec![3]);
        (Counted(Arc::clone(&ends), values), info)
    };
    let (kept, info) = make();
    let versioned = pack_versioned(kept, info, 0).cast::<DLManagedTensorVersioned>();
    // SAFETY: a fresh tensor that we own; both crates follow the header's layout.
    let versioned = unsafe { CaiView::from_dlpack_ptr(versioned, Stream::None) };
    let (kept, info) = make();
    let legacy = pack(kept, info).cast::<DLManagedTensor>();
    // SAFETY: as above.
    let legacy = unsafe { CaiView::from_dlpack_ptr(legacy, Stream::None) };
    for view in [versioned, legacy] {
        let view = view.expect("a view");
        let values = view.typed::<f32>().expect("floats").copy_to_vec();
        assert_eq!(values.expect("a copy"), [1.0, 2.0, 3.0]);
    }
    assert_eq!(ends.load(Ordering::SeqCst), 2);
}

#[test]
fn dlpack_rs_takes_our_tensor() {
    let read_only = Array {
        read_only: true,
        ..Array::of_shape(&[2, 3])
    };
    let view = read_only.over(vec![1_i64; 6]);
    let tensor = view
        .to_dlpack(LiveStream::NONE)
        .expect("a tensor")
        .into_raw();
    let theirs = tensor.cast::<dlpack_rs::ffi::DLManagedTensorVersioned>();
    // SAFETY: ours until its deleter is called; both crates follow the header's layout.
    let seen = unsafe { &*theirs };
    assert_eq!((seen.version.major, seen.flags & 1), (1, 1));
    assert_eq!((seen.dl_tensor.ndim, seen.dl_tensor.dtype.bits), (2, 64));
    let delete = seen.deleter.expect("a deleter");
    // SAFETY: called once, and the tensor is not used afterwards.
    unsafe { delete(theirs) };
}
