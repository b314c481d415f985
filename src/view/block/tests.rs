use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use dlpark::ManagedTensorBase;
use rstest::rstest;

use super::*;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::Device;
use crate::protocol::dtype::DType;
use crate::view::Owner;

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn describe(shape: &[i64], strides: &[i64]) -> Descriptor {
    Descriptor::new(&RawTensor {
        data: 0x1000,
        device: Device::cuda(3),
        shape,
        strides: Some(strides),
        ..RawTensor::EXAMPLE
    })
    .expect("a valid tensor")
}

fn round_trip<M: Abi>(ndim: usize, flags: u64) {
    let shape: Vec<i64> = (1..).take(ndim).map(|extent| 1 + extent % 2).collect();
    let strides: Vec<i64> = (0..).take(ndim).map(|axis| 7 * (axis % 3)).collect();
    let descriptor = describe(&shape, &strides);
    let drops = Arc::new(AtomicUsize::new(0));
    let owner = Owner::new(Counted(Arc::clone(&drops))).into_raw();
    let built = build::<M>(descriptor.borrowed(), flags, owner).expect("memory");

    // SAFETY: `build` initialised it, and its deleter has not run.
    let managed = unsafe { built.as_ref() };
    let tensor = managed.tensor();
    assert_eq!(tensor.ndim as usize, ndim);
    assert_eq!((tensor.data.addr(), tensor.byte_offset), (0x1000, 0));
    assert_eq!(
        (tensor.device.device_type.0, tensor.device.device_id),
        (2, 3)
    );
    // SAFETY: `ndim` extents in the block.
    let extents = unsafe { std::slice::from_raw_parts(tensor.shape, ndim) };
    assert_eq!(extents, shape);
    // SAFETY: `ndim` strides in the block.
    let steps = unsafe { std::slice::from_raw_parts(tensor.strides, ndim) };
    assert_eq!(steps, strides);
    if managed.version().is_some() {
        assert_eq!(managed.flags().bits(), flags);
    }

    assert_eq!(drops.load(SeqCst), 0);
    // SAFETY: initialised, and nobody's but this test's.
    unsafe { M::drop_raw(built.as_ptr()) };
    assert_eq!(drops.load(SeqCst), 1);
}

#[rstest]
fn a_block_says_what_was_described_and_frees_itself(
    #[values(0, 1, 2, 7, 64)] ndim: usize,
    #[values(0, 1, 3)] flags: u64,
) {
    round_trip::<DLManagedTensor>(ndim, flags);
    round_trip::<DLManagedTensorVersioned>(ndim, flags);
}

#[test]
fn a_deleter_may_run_on_another_thread() {
    let drops = Arc::new(AtomicUsize::new(0));
    let owner = Owner::new(Counted(Arc::clone(&drops))).into_raw();
    let built =
        build::<DLManagedTensor>(describe(&[2], &[1]).borrowed(), 0, owner).expect("memory");
    let address = built.as_ptr().expose_provenance();
    let thread = std::thread::spawn(move || {
        let tensor = ptr::with_exposed_provenance_mut::<DLManagedTensor>(address);
        // SAFETY: initialised, and given to this thread.
        unsafe { DLManagedTensor::drop_raw(tensor) };
    });
    thread.join().expect("no panic");
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_block_in_a_forked_child_is_freed_and_its_owner_leaked() {
    let drops = Arc::new(AtomicUsize::new(0));
    let owner = Owner::new(Counted(Arc::clone(&drops)))
        .into_raw()
        .as_of_parent();
    let built =
        build::<DLManagedTensor>(describe(&[2], &[1]).borrowed(), 0, owner).expect("memory");
    // SAFETY: initialised, and this test's.
    unsafe { DLManagedTensor::drop_raw(built.as_ptr()) };
    assert_eq!(drops.load(SeqCst), 0);
    assert_eq!(
        Arc::strong_count(&drops),
        2,
        "the owner's value is still there"
    );
    // SAFETY: the payload was leaked just now; the test takes it back, so that leak checkers are quiet.
    unsafe { (owner.vtable.release)(owner.payload) };
}

#[test]
fn items_that_dlpack_lacks_are_in_no_tensor() {
    let bytes = describe(&[2], &[1]);
    let whole = DescriptorRef {
        dtype: DType::CAI_ONLY,
        ..bytes.borrowed()
    };
    let drops = Arc::new(AtomicUsize::new(0));
    let owner = Owner::new(Counted(Arc::clone(&drops))).into_raw();
    let refused = build::<DLManagedTensorVersioned>(whole, 0, owner).expect_err("no words for it");
    assert!(refused.to_string().contains("[dtype-code]"), "{refused}");
    assert_eq!(drops.load(SeqCst), 0);
    // SAFETY: `build` did not take it.
    unsafe { owner.release() };
    assert_eq!(drops.load(SeqCst), 1);
}
