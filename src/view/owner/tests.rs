use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

use dlpark::ffi::DLManagedTensorVersioned;
use rstest::rstest;

use super::*;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::Device;
use crate::protocol::dtype::DType;
use crate::protocol::stream::Stream;
use crate::view::{CaiView, LiveStream, stats};

/// Counts how often it is dropped, and looks at what it keeps alive as it goes.
struct Counted(Arc<AtomicUsize>, Vec<u8>);

impl Drop for Counted {
    fn drop(&mut self) {
        assert_eq!(self.1, b"alive");
        self.0.fetch_add(1, SeqCst);
    }
}

fn counted() -> (Owner, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Counted(Arc::clone(&drops), b"alive".to_vec());
    (Owner::new(value), drops)
}

#[test]
fn a_unique_owner_releases_once() {
    let (owner, drops) = counted();
    assert_eq!(drops.load(SeqCst), 0);
    drop(owner);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_value_of_no_size_is_an_owner_too() {
    drop(Owner::new(()));
    drop(Owner::new(()).share());
}

#[rstest]
#[case::the_first_goes_first(true)]
#[case::the_second_goes_first(false)]
fn the_last_of_two_releases(#[case] first_goes_first: bool) {
    let (first, drops) = counted();
    let second = first.share();
    let (early, late) = if first_goes_first {
        (first, second)
    } else {
        (second, first)
    };
    drop(early);
    assert_eq!(drops.load(SeqCst), 0);
    drop(late);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_share_of_a_share_is_one_more_count_of_the_same() {
    let (first, drops) = counted();
    let second = first.share();
    let third = second.share();
    assert_eq!(second.raw.payload, third.raw.payload);
    drop((first, second));
    assert_eq!(drops.load(SeqCst), 0);
    drop(third);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn into_raw_releases_nothing_and_gives_the_payload() {
    let (owner, drops) = counted();
    let raw = owner.into_raw();
    assert_eq!(drops.load(SeqCst), 0);
    // SAFETY: `into_raw` gave the payload to this test.
    unsafe { raw.release() };
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn into_raw_of_a_shared_owner_gives_its_count() {
    let (owner, drops) = counted();
    let other = owner.share();
    let raw = owner.into_raw();
    drop(other);
    assert_eq!(drops.load(SeqCst), 0);
    // SAFETY: `into_raw` gave the count to this test.
    unsafe { raw.release() };
    assert_eq!(drops.load(SeqCst), 1);
}

/// A kind of payload that shows a Python object, and leaves it alone.
struct Object;

impl Kind for Object {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;
    const SHOWS: Shows = Shows::Object;

    fn vtable() -> &'static Vtable {
        static OBJECT: Vtable = Vtable::of::<Object>();
        &OBJECT
    }

    unsafe fn end(_: NonNull<()>) {
        stats::RELEASED.add();
    }
}

fn object() -> Owner {
    Owner::from_raw(RawOwner::new(NonNull::dangling(), Object::vtable()))
}

/// Returns how many objects the owner alone holds.
fn shown(owner: &Owner) -> usize {
    let mut count = 0;
    let visited = owner.visit_objects(&mut |_| {
        count += 1;
        Ok::<(), ()>(())
    });
    assert_eq!(visited, Ok(()));
    count
}

#[test]
fn a_payload_is_found_under_its_own_vtable_only() {
    // Of a kind whose vtable is a `static`: a generic one is a constant, with an address in each codegen unit.
    let owner = object();
    let shared = owner.share();
    for each in [&owner, &shared] {
        assert_eq!(each.payload(Object::vtable()), Some(NonNull::dangling()));
        assert_eq!(each.payload(Boxed::<u8>::vtable()), None);
    }
}

#[test]
fn an_object_is_shown_by_its_only_owner() {
    let owner = object();
    assert_eq!((shown(&owner), owner.may_hold_objects(|_| true)), (1, true));
    let shared = owner.share();
    assert_eq!((shown(&owner), shown(&shared)), (0, 0), "it is shared");
    assert!(owner.may_hold_objects(|_| true) && shared.may_hold_objects(|_| true));
    drop(shared);
    assert_eq!(shown(&owner), 1, "no more");
    let shared = owner.share();
    drop(owner);
    assert_eq!(shown(&shared), 1, "no more");
    let (value, _drops) = counted();
    assert_eq!(
        (shown(&value), value.may_hold_objects(|_| true)),
        (0, false)
    );
}

#[test]
fn both_owners_of_a_pair_are_shown_and_dropped() {
    let (value, drops) = counted();
    let pair = object().beside(value).beside(object());
    assert_eq!((shown(&pair), pair.may_hold_objects(|_| true)), (2, true));
    let shared = pair.share();
    assert_eq!(shown(&pair), 0, "it is shared");
    drop(pair);
    assert_eq!((shown(&shared), drops.load(SeqCst)), (2, 0));
    drop(shared);
    assert_eq!(drops.load(SeqCst), 1);
    let (value, _drops) = counted();
    let (other, _drops) = counted();
    assert!(!value.beside(other).may_hold_objects(|_| true));
}

#[test]
fn a_forked_child_leaks_its_parents_payload_and_counts_it() {
    let (owner, drops) = counted();
    let raw = owner.into_raw();
    let leaked = stats().leaked_at_exit;
    // SAFETY: `into_raw` gave the payload to this test.
    unsafe { raw.as_of_parent().release() };
    assert_eq!(drops.load(SeqCst), 0);
    assert!(stats().leaked_at_exit > leaked);
    // SAFETY: leaked just now; the test takes it back, so that leak checkers are quiet.
    unsafe { raw.release() };
}

#[test]
fn a_forked_child_may_give_back_its_own_count_of_a_shared_payload() {
    let (owner, drops) = counted();
    let raw = owner.share().into_raw().as_of_parent();
    assert!(!raw.is_parents(), "a count is this process's own memory");
    // SAFETY: `into_raw` gave the count to this test.
    unsafe { raw.release() };
    drop(owner);
    assert_eq!(drops.load(SeqCst), 1);
}

/// Runs `race` on `threads` threads that start as nearly together as a barrier can make them.
fn together<R: Send>(threads: usize, race: impl Fn() -> R + Sync) -> Vec<R> {
    let start = Barrier::new(threads);
    let run = || {
        start.wait();
        race()
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn threads_that_share_at_once_agree_on_one_arc() {
    const RACES: usize = if cfg!(miri) { 20 } else { 2_000 };
    for race in 0..RACES {
        let (owner, drops) = counted();
        let shares = together(3, || owner.share());
        assert!(
            shares
                .windows(2)
                .all(|pair| pair[0].raw.payload == pair[1].raw.payload),
            "race {race}"
        );
        drop(owner);
        drop(shares);
        assert_eq!(drops.load(SeqCst), 1, "race {race}");
    }
}

#[test]
fn threads_that_share_and_drop_at_once_release_once() {
    // Races inside the threads: starting a thread costs more than a race.
    const RACES: usize = if cfg!(miri) { 50 } else { 100_000 };
    let rounds: Vec<_> = (0..RACES).map(|_| counted()).collect();
    let (owners, drops): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
    together(2, || {
        for owner in &owners {
            drop(owner.share());
        }
    });
    assert!(drops.iter().all(|each| each.load(SeqCst) == 0));
    drop(owners);
    assert!(drops.iter().all(|each| each.load(SeqCst) == 1));
}

/// A kind of payload that counts its ends where it points.
struct Ends;

impl Kind for Ends {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;

    fn vtable() -> &'static Vtable {
        static ENDS: Vtable = Vtable::of::<Ends>();
        &ENDS
    }

    unsafe fn end(payload: NonNull<()>) {
        // SAFETY: a counter of the test, which outlives its owners.
        let ends = unsafe { payload.cast::<AtomicUsize>().as_ref() };
        ends.fetch_add(1, SeqCst);
        stats::RELEASED.add();
    }
}

/// When an owner is shared: before or after something is kept beside it, or the share has ended again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    Never,
    Before,
    After,
    Ended,
}

#[rstest]
fn a_payload_is_given_up_unless_another_owner_shares_it(
    #[values(0, 1, 3)] beside: usize,
    #[values(Share::Never, Share::Before, Share::After, Share::Ended)] share: Share,
) {
    let ends = AtomicUsize::new(0);
    let raw = RawOwner::new(NonNull::from(&ends).cast(), Ends::vtable());
    let mut owner = Owner::from_raw(raw);
    let mut other = (share == Share::Before).then(|| owner.share());
    let (owners, drops): (Vec<_>, Vec<_>) = (0..beside).map(|_| counted()).unzip();
    for more in owners {
        owner = owner.beside(more);
    }
    match share {
        Share::After => other = Some(owner.share()),
        Share::Ended => drop(owner.share()),
        Share::Never | Share::Before => {}
    }
    let dropped = |count| drops.iter().all(|drops| drops.load(SeqCst) == count);
    // A share from before is one of what is kept within a pair.
    let is_shared = share == Share::After || share == Share::Before && beside == 0;
    assert_eq!(owner.is_sole(), !is_shared);
    assert_eq!(owner.give_up(), other.is_none());
    assert_eq!(ends.load(SeqCst), 0, "given up, or another owner's");
    assert!(
        dropped(usize::from(share != Share::After)),
        "what was beside it"
    );
    let ended = usize::from(other.is_some());
    drop(other);
    assert_eq!(ends.load(SeqCst), ended);
    assert!(dropped(1));
}

/// A payload is found through the tensors of this library that its owner has come back in, of both layouts, and through no other's.
#[rstest]
#[case::of_no_tensor(&[])]
#[case::of_one(&[false])]
#[case::of_a_legacy_one(&[true])]
#[case::of_several(&[false, true, true, false])]
fn a_payload_is_found_in_tensors_of_this_library(
    #[case] are_legacy: &[bool],
    #[values(false, true)] is_shared: bool,
) {
    let (mut owner, drops) = counted();
    let vtable = owner.raw.vtable;
    let payload = owner.raw.payload;
    let mut elements = [1.0_f32, 2.0];
    let address = elements.as_mut_ptr().expose_provenance() as u64;
    for is_legacy in are_legacy {
        let raw = RawTensor::new(address, Device::HOST, DType::F32, &[2]);
        let described = Descriptor::new(&raw).expect("a tensor");
        // SAFETY: the elements outlive the view, and nothing is pending.
        let view = unsafe { CaiView::new(described, Stream::None, owner) };
        let back = match is_legacy {
            true => {
                let tensor = view.to_dlpack_legacy(LiveStream::NONE);
                CaiView::from_dlpack(tensor.expect("a tensor"), LiveStream::NONE)
            }
            false => {
                let tensor = view.to_dlpack(LiveStream::NONE);
                CaiView::from_dlpack(tensor.expect("a tensor"), LiveStream::NONE)
            }
        };
        owner = back.expect("a view").owner().share();
    }
    let shared = is_shared.then(|| owner.share());
    assert_eq!(owner.payload_within(vtable), Some(payload));
    assert_eq!(owner.payload_within(&PAIR), None);
    drop(shared);
    assert_eq!(drops.load(SeqCst), 0);
    drop(owner);
    assert_eq!(drops.load(SeqCst), 1);
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the tensor of the test below is a box.
    drop(unsafe { Box::from_raw(tensor) });
}

#[rstest]
#[case::with_a_deleter(Some(delete as unsafe extern "C" fn(_)))]
#[case::without(None)]
fn nothing_is_looked_for_in_a_tensor_of_another_library(
    #[case] deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
) {
    // SAFETY: a C struct of integers and nullable pointers: all zeros are a value.
    let mut tensor = Box::new(unsafe { std::mem::zeroed::<DLManagedTensorVersioned>() });
    tensor.deleter = deleter;
    let tensor = NonNull::from(Box::leak(tensor));
    // SAFETY: initialised, leaked above, and its deleter may run anywhere.
    let owner = Owner::from_raw(unsafe { RawOwner::managed(tensor) });
    assert_eq!(owner.payload_within(&SHARED), None);
    assert_eq!(owner.share().payload_within(&PAIR), None);
    drop(owner);
    if deleter.is_none() {
        // SAFETY: without a deleter nobody has freed the box.
        drop(unsafe { Box::from_raw(tensor.as_ptr()) });
    }
}
