use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use rstest::rstest;

use crate::view::block::Abi;
use crate::view::{Owner, RawOwner, stats};

struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("an owner's drop");
    }
}

/// Panics as it is dropped, and what it throws panics as that is dropped.
struct PanicsTwice;

impl Drop for PanicsTwice {
    fn drop(&mut self) {
        std::panic::panic_any(Panics);
    }
}

#[rstest]
#[case::once(Owner::new(Panics), 1)]
#[case::what_it_throws_panics_too(Owner::new(PanicsTwice), 2)]
#[case::shared(Owner::new(Panics).share(), 1)]
fn a_panic_is_caught_and_counted(#[case] owner: Owner, #[case] panics: u64) {
    let before = stats();
    drop(owner);
    let after = stats();
    assert!(after.panics >= before.panics + panics);
    assert!(
        after.released > before.released,
        "counted as released all the same"
    );
}

static DELETED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn delete<M>(tensor: *mut M) {
    DELETED.fetch_add(1, SeqCst);
    // SAFETY: every tensor of these tests is a box.
    drop(unsafe { Box::from_raw(tensor) });
}

#[test]
fn a_foreign_tensor_is_deleted_once_and_one_without_deleter_is_left_alone() {
    fn take<M: Abi>(mut tensor: Box<M>, set: impl FnOnce(&mut M)) -> Owner {
        set(&mut tensor);
        let tensor = std::ptr::NonNull::from(Box::leak(tensor));
        // SAFETY: initialised, leaked above, and its deleter may run anywhere.
        Owner::from_raw(unsafe { RawOwner::managed(tensor) })
    }
    // SAFETY: these are C structs of integers and nullable pointers: all zeros are a value.
    let legacy = || Box::new(unsafe { std::mem::zeroed::<DLManagedTensor>() });
    // SAFETY: a C struct of integers and nullable pointers: all zeros are a value.
    let versioned = || Box::new(unsafe { std::mem::zeroed::<DLManagedTensorVersioned>() });

    drop(take(legacy(), |tensor| tensor.deleter = Some(delete)));
    assert_eq!(DELETED.load(SeqCst), 1);
    drop(take(versioned(), |tensor| tensor.deleter = Some(delete)).share());
    assert_eq!(DELETED.load(SeqCst), 2);

    let kept = legacy();
    let address = &raw const *kept;
    drop(take(kept, |_| ()));
    assert_eq!(DELETED.load(SeqCst), 2);
    // SAFETY: without a deleter nobody has freed the box that `take` leaked.
    drop(unsafe { Box::from_raw(address.cast_mut()) });
}
