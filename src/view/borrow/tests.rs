use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, RwLock};

use rstest::rstest;

use super::{Borrow, LEDGER, Meeting};
use crate::error::Error;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, DeviceType, Flags};
use crate::protocol::dtype::code;
use crate::protocol::rule::{Rule, Violation};
use crate::protocol::stream::Stream;
use crate::view::{CaiView, Owner};

fn floats(data: u64, shape: &[i64], strides: &[i64]) -> Descriptor {
    let raw = RawTensor {
        data,
        device: Device::cuda(0),
        shape,
        strides: Some(strides),
        ..RawTensor::EXAMPLE
    };
    Descriptor::new(&raw).expect("a tensor")
}

/// Floats behind a handle of Vulkan, from `byte_offset` on.
fn behind(handle: u64, byte_offset: u64) -> Descriptor {
    let raw = RawTensor {
        data: handle,
        byte_offset,
        device: Device::new(DeviceType::VULKAN, 0),
        shape: &[2, 2],
        strides: Some(&[7, 1]),
        ..RawTensor::EXAMPLE
    };
    Descriptor::new(&raw).expect("a tensor")
}

/// A borrow in the ledger, as long as it lives.
#[derive(Debug)]
struct Held(NonNull<Borrow>);

impl Held {
    fn new(descriptor: &Descriptor, exclusive: bool) -> Result<Self, Violation> {
        let held = Self(NonNull::from(Box::leak(Box::new(Borrow::of(
            descriptor, exclusive,
        )))));
        // SAFETY: in a box of its own until `drop`.
        unsafe { Borrow::begin(held.0) }.map(|()| held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: as `begin` left it.
        unsafe { Borrow::end(self.0) };
        // SAFETY: leaked by `new`, and out of the ledger.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: nothing in a borrow belongs to a thread.
unsafe impl Send for Held {}

#[rstest]
#[case::the_same(floats(0x1000, &[4], &[1]), floats(0x1000, &[4], &[1]), true)]
#[case::apart(floats(0x1000, &[4], &[1]), floats(0x1010, &[4], &[1]), false)]
#[case::one_element(floats(0x1000, &[5], &[1]), floats(0x1010, &[4], &[1]), true)]
#[case::even_and_odd(floats(0x1000, &[4], &[2]), floats(0x1004, &[4], &[2]), false)]
#[case::odd_and_even(floats(0x1004, &[4], &[2]), floats(0x1000, &[4], &[2]), false)]
#[case::a_column_twice(floats(0x1000, &[4], &[3]), floats(0x100c, &[3], &[3]), true)]
#[case::columns(floats(0x1000, &[4, 1], &[3, 1]), floats(0x1008, &[4, 1], &[3, 1]), false)]
#[case::a_row_and_a_column(floats(0x1000, &[3], &[1]), floats(0x1000, &[4], &[3]), true)]
#[case::backwards(floats(0x101c, &[4], &[-2]), floats(0x1000, &[4], &[2]), false)]
#[case::backwards_onto(floats(0x1018, &[4], &[-2]), floats(0x1000, &[4], &[2]), true)]
#[case::scalars(floats(0x1000, &[], &[]), floats(0x1000, &[], &[]), true)]
#[case::strides_without_a_common_divisor(floats(0x1000, &[4], &[2]), floats(0x1004, &[2], &[3]), true)]
#[case::one_handle(behind(8, 0), behind(8, 1 << 40), true)]
#[case::two_handles(behind(8, 0), behind(9, 0), false)]
fn meeting(#[case] one: Descriptor, #[case] other: Descriptor, #[case] expected: bool) {
    let (one, other) = (Borrow::of(&one, true), Borrow::of(&other, false));
    assert_eq!(one.meets(&other), expected);
    assert_eq!(other.meets(&one), expected);
}

#[rstest]
#[case::vector(floats(0x1000, &[4], &[1]))]
#[case::matrix(floats(0x1000, &[4, 3], &[3, 1]))]
#[case::scalar(floats(0x1000, &[], &[]))]
#[case::one_of_all(floats(0x1000, &[1, 1], &[7, 9]))]
#[case::empty(floats(0x1000, &[0, 4], &[4, 1]))]
fn the_short_way_is_the_long_one(#[case] array: Descriptor) {
    let (short, long) = (Borrow::of(&array, true), Borrow::spread(&array, true));
    assert_eq!((short.start, short.end), (long.start, long.end));
    assert_eq!(short.data * (short.end.min(1)), long.data);
    assert_eq!(short.grid * (short.end.min(1)), long.grid);
}

#[test]
fn many_share_and_one_writes() {
    let array = floats(0x7000_0000, &[4], &[1]);
    let first = Held::new(&array, false).expect("shared");
    let second = Held::new(&array, false).expect("shared");
    let third = Held::new(&array, false).expect("shared");
    drop(second);
    let refused = Held::new(&array, true).expect_err("in use");
    assert_eq!(refused.rule(), Rule::ViewInUse);
    drop((first, third));
    let writer = Held::new(&array, true).expect("alone");
    assert!(Held::new(&array, false).is_err());
    drop(writer);
    assert!(Held::new(&array, false).is_ok());
}

#[test]
fn no_elements_meet_nobody() {
    let empty = floats(0x1000, &[0, 4], &[4, 1]);
    let _first = Held::new(&empty, true).expect("nothing is borrowed");
    assert!(Held::new(&empty, true).is_ok());
}

/// Eight threads read and write four arrays: who writes is alone.
#[test]
fn threads_agree() {
    const ARRAYS: usize = 4;
    const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
    /// Readers, or `WRITER`.
    static USERS: [AtomicU32; ARRAYS] = [const { AtomicU32::new(0) }; ARRAYS];
    const WRITER: u32 = 1 << 16;
    let users = |thread: usize| {
        move || {
            let (mut granted, mut state) = ([0_u32; 2], thread as u64 + 1);
            for _ in 0..ROUNDS {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let (at, exclusive) = ((state >> 40) as usize % ARRAYS, state >> 60 == 0);
                let array = floats(0x5000_0000 + 0x1000 * at as u64, &[8, 8], &[8, 1]);
                let Ok(held) = Held::new(&array, exclusive) else {
                    continue;
                };
                let mine = if exclusive { WRITER } else { 1 };
                let others = USERS[at].fetch_add(mine, Ordering::Relaxed);
                let is_sound = if exclusive {
                    others == 0
                } else {
                    others < WRITER
                };
                assert!(is_sound, "{others:#x} beside {mine:#x}");
                USERS[at].fetch_sub(mine, Ordering::Relaxed);
                drop(held);
                granted[usize::from(exclusive)] += 1;
            }
            granted
        }
    };
    let threads: Vec<_> = (0..8)
        .map(|thread| std::thread::spawn(users(thread)))
        .collect();
    let granted = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"));
    let granted = granted.fold([0, 0], |sum, each| [sum[0] + each[0], sum[1] + each[1]]);
    assert!(granted.iter().all(|count| *count > 0), "{granted:?}");
}

/// A child that is forked as threads of the parent enter the ledger and leave it finds it open, and whole.
#[cfg(all(unix, not(miri)))]
#[test]
fn a_child_finds_the_ledger_open() {
    const FORKS: usize = 300;
    static STOP: AtomicU32 = AtomicU32::new(0);
    super::watch_forks();
    let array = |at: u64| floats(0x4000_0000 + 0x1000 * at, &[8], &[1]);
    let users = (0..4).map(|at| {
        std::thread::spawn(move || {
            while STOP.load(Ordering::Relaxed) == 0 {
                drop((Held::new(&array(at), true), Held::new(&array(9), false)));
            }
        })
    });
    let users: Vec<_> = users.collect();
    let mine = Held::new(&array(8), true).expect("alone");
    for _ in 0..FORKS {
        // SAFETY: the child takes no lock but the ledger's and malloc's, which is open there, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Not for ever, where this is broken.
            // SAFETY: a signal that ends this process.
            unsafe { libc::alarm(20) };
            let mut borrows = [Borrow::of(&array(8), false), Borrow::of(&array(10), true)];
            let [rival, free] = borrows.each_mut().map(NonNull::from);
            // SAFETY: stands in this frame, and is not entered.
            let refused = unsafe { Borrow::begin(rival) }.is_err();
            // SAFETY: stands in this frame until it is taken out below.
            let entered = unsafe { Borrow::begin(free) }.is_ok();
            // SAFETY: as `begin` left it.
            unsafe { Borrow::end(free) };
            // SAFETY: ends this process; no destructor is run.
            unsafe { libc::_exit(i32::from(!(refused && entered))) };
        }
        assert!(child > 0, "no child");
        let mut status = -1;
        // SAFETY: a child of ours, and room for its status.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "the child's status");
    }
    drop(mine);
    STOP.store(1, Ordering::Relaxed);
    for user in users {
        user.join().expect("no panic");
    }
}

fn values() -> (CaiView, CaiView) {
    let values = vec![0.0_f32; 4];
    let data = values.as_ptr().expose_provenance() as u64;
    let raw = RawTensor {
        data,
        device: Device::HOST,
        shape: &[4],
        ..RawTensor::EXAMPLE
    };
    let descriptor = Descriptor::new(&raw).expect("a tensor");
    // SAFETY: the elements lie in the vector, which the owner keeps.
    let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(values)) };
    (view.clone(), view)
}

fn rule<T>(answer: Result<T, Error>) -> Option<Rule> {
    match answer.map(drop) {
        Ok(()) => None,
        Err(Error::Violation(violation)) => Some(violation.rule()),
        Err(other) => panic!("{other}"),
    }
}

/// What an argument promises holds for views that are no arguments too.
#[rstest]
#[case::read(false, None)]
#[case::written(true, Some(Rule::ViewInUse))]
fn what_an_argument_uses_is_not_lent_against_it(
    #[case] exclusive: bool,
    #[case] to_be_read: Option<Rule>,
) {
    let (of_argument, mut other) = values();
    let argument = Held::new(of_argument.descriptor(), exclusive).expect("a borrow");
    assert_eq!(rule(other.typed::<f32>()), to_be_read);
    assert_eq!(rule(other.typed_mut::<f32>()), Some(Rule::ViewInUse));
    let mut clone = of_argument.clone();
    assert_eq!(rule(clone.typed_mut::<f32>()), Some(Rule::ViewInUse));
    assert!(values().1.typed_mut::<f32>().is_ok(), "other memory");
    drop(argument);
    assert_eq!(rule(other.typed_mut::<f32>()), None);
}

/// A `MemoryBorrow` is for code that goes on to use the view: it forbids arguments, and no view.
#[test]
fn a_borrow_by_hand_forbids_arguments_alone() {
    let (view, mut other) = values();
    let held = view.borrow_memory_mut().expect("a borrow");
    assert!(view.typed::<f32>().is_ok());
    assert!(other.typed_mut::<f32>().is_ok());
    assert!(Held::new(other.descriptor(), false).is_err());
    drop(held);
    assert!(Held::new(other.descriptor(), false).is_ok());
}

/// Code, bits, lanes and flags of elements: of whole bytes, packed, and padded to a byte for each lane.
const ELEMENTS: [(u8, u8, u16, Flags); 8] = [
    (code::UINT, 8, 1, Flags::NONE),
    (code::FLOAT, 32, 1, Flags::NONE),
    (code::UINT, 8, 3, Flags::NONE),
    (code::UINT, 4, 1, Flags::NONE),
    (code::UINT, 4, 3, Flags::NONE),
    (code::UINT, 4, 2, Flags::NONE),
    (code::UINT, 4, 1, Flags::SUBBYTE_PADDED),
    (code::UINT, 4, 2, Flags::SUBBYTE_PADDED),
];

/// An array of up to two axes in a few hundred bytes, and each byte of its elements.
fn random_array(random: &mut impl FnMut(i64) -> i64) -> (Descriptor, Vec<u64>) {
    let axes: Vec<_> = (0..random(3))
        .map(|_| (1 + random(4), random(13) - 6))
        .collect();
    let (shape, strides): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
    // Bytes that are not aligned as floats are would be refused elsewhere.
    let (data, byte_offset) = (0x1000 + 4 * random(16), 4 * random(8));
    let (code, bits, lanes, flags) = ELEMENTS[random(ELEMENTS.len() as i64) as usize];
    let descriptor = Descriptor::new(&RawTensor {
        data: data as u64,
        byte_offset: byte_offset as u64,
        device: Device::cuda(0),
        code,
        bits,
        lanes,
        shape: &shape,
        strides: Some(&strides),
        flags,
    });
    let descriptor = descriptor.expect("a tensor");
    let lane = if flags == Flags::NONE { bits } else { 8 };
    let bits = i64::from(lane) * i64::from(lanes);
    let mut starts = vec![8 * descriptor.data() as i64];
    for (extent, stride) in shape.iter().zip(&strides) {
        let along = |start: &i64| {
            (0..*extent)
                .map(|at| start + at * stride * bits)
                .collect::<Vec<_>>()
        };
        starts = starts.iter().flat_map(along).collect();
    }
    let bytes = starts
        .iter()
        .flat_map(|start| (start >> 3..(start + bits + 7) >> 3).map(|byte| byte as u64));
    (descriptor, bytes.collect())
}

/// The distance that all elements are multiples of from each other; 0 for one element, 1 for those that may lie within a
/// byte.
fn grid(descriptor: &Descriptor) -> u64 {
    let Some(itemsize) = descriptor.itemsize().map(u64::from) else {
        return 1;
    };
    if descriptor.layout().is_c_contiguous() {
        return itemsize;
    }
    let axes = descriptor.shape().iter().zip(descriptor.elem_strides());
    axes.filter(|(extent, _)| **extent > 1)
        .map(|(_, stride)| stride.unsigned_abs() * itemsize)
        .fold(0, divisor)
}

fn divisor(one: u64, other: u64) -> u64 {
    match (one, other) {
        (0, any) | (any, 0) => any,
        (one, other) => (1..=one)
            .rev()
            .find(|by| one % by == 0 && other % by == 0)
            .unwrap_or(1),
    }
}

/// Sound: arrays that share a byte exclude each other. And not stricter than the rule: they do so only if their spans
/// meet, and their bytes modulo what all strides are multiples of.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn random_arrays_exclude_each_other_as_their_bytes_do() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |end: i64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 8) % end as u64) as i64
    };
    let mut seen = [0; 3];
    for _ in 0..20_000 {
        let ((one, ours), (other, theirs)) = (random_array(&mut random), random_array(&mut random));
        let (exclusive, is_writer) = (random(2) == 0, random(2) == 0);
        let borrow = |descriptor, exclusive| Borrow::of(descriptor, exclusive);
        let excludes = borrow(&one, exclusive).excludes(&borrow(&other, is_writer));
        let shares = ours.iter().any(|byte| theirs.contains(byte));
        let span = |bytes: &[u64]| (bytes.iter().min().copied(), bytes.iter().max().copied());
        let (a, b) = (span(&ours), span(&theirs));
        let by = divisor(grid(&one), grid(&other));
        let rest = |byte: &u64| byte.checked_rem(by).unwrap_or(0);
        let rests: Vec<_> = theirs.iter().map(rest).collect();
        let meets = a.0 <= b.1 && b.0 <= a.1 && ours.iter().any(|byte| rests.contains(&rest(byte)));
        assert!(!shares || meets, "the oracle is sound");
        assert_eq!(
            excludes,
            meets && (exclusive || is_writer),
            "{one:?} {other:?}"
        );
        seen[usize::from(shares) + usize::from(meets)] += 1;
    }
    assert!(
        seen.iter().all(|count| *count > 100),
        "each kind occurs: {seen:?}"
    );
}

#[test]
fn nothing_is_borrowed_behind_no_handle() {
    let none = RawTensor {
        data: 0,
        device: Device::new(DeviceType::VULKAN, 0),
        shape: &[0],
        ..RawTensor::EXAMPLE
    };
    let (none, some) = (Descriptor::new(&none).expect("no elements"), behind(7, 0));
    for other in [&none, &some] {
        assert!(!Borrow::of(&none, true).excludes(&Borrow::of(other, true)));
    }
    assert!(Borrow::of(&some, true).excludes(&Borrow::of(&some, false)));
}

/// An element that is broadcast has no grid: it excludes whatever its bytes are part of.
#[test]
fn broadcast_elements_meet_if_a_byte_is_of_both() {
    let cases = [(0, true), (3, true), (4, false), (-3, true), (-4, false)];
    for (distance, meets) in cases {
        let one = bytes(0x7100, 4);
        let other = bytes(0x7100_u64.wrapping_add_signed(distance), 4);
        let held = Held::new(&one, true).expect("nothing else");
        assert_eq!(Held::new(&other, false).is_err(), meets, "{distance}");
        drop(held);
    }
}

/// Two indices for one item of this many bytes.
fn bytes(data: u64, itemsize: u8) -> Descriptor {
    let raw = RawTensor {
        data,
        device: Device::cuda(0),
        code: code::UINT,
        bits: 8,
        lanes: itemsize.into(),
        shape: &[2],
        strides: Some(&[0]),
        ..RawTensor::EXAMPLE
    };
    Descriptor::new(&raw).expect("a tensor")
}

/// Like [`Held::new`], for one that waits for others.
fn held_late(
    descriptor: &Descriptor,
    exclusive: bool,
    meeting: Meeting,
) -> Result<Held, Violation> {
    let borrow = Borrow::of(descriptor, exclusive).meeting(meeting);
    let held = Held(NonNull::from(Box::leak(Box::new(borrow))));
    // SAFETY: in a box of its own until `drop`.
    unsafe {
        Borrow::begin_late(held.0, || {
            std::thread::yield_now();
            Ok::<_, Violation>(())
        })
    }
    .map(|()| held)
}

/// Eight threads that wait for two of three arrays, one after the other and in any order: whoever writes is alone, except
/// that those who trust are beside each other; one of a circle of waits is refused, and every wait ends.
#[test]
fn those_who_wait_take_turns() {
    const ARRAYS: usize = 3;
    const ROUNDS: usize = if cfg!(miri) { 12 } else { 2_000 };
    /// Readers, writers in the next byte, those who trust in the third.
    static USERS: [AtomicU32; ARRAYS] = [const { AtomicU32::new(0) }; ARRAYS];
    let users = |thread: usize| {
        move || {
            let (mut counts, mut state) = ([0_u32; 2], thread as u64 + 1);
            for _ in 0..ROUNDS {
                let mut both = Vec::new();
                for _ in 0..2 {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let at = (state >> 40) as usize % ARRAYS;
                    let (exclusive, meeting, mine) = match state >> 61 {
                        0..=2 => (true, Meeting::Waits, 1 << 8),
                        3..=5 => (true, Meeting::Trusts, 1 << 16),
                        _ => (false, Meeting::Waits, 1),
                    };
                    let array = floats(0x6000_0000 + 0x1000 * at as u64, &[8, 8], &[8, 1]);
                    match held_late(&array, exclusive, meeting) {
                        Ok(held) => {
                            let others = USERS[at].fetch_add(mine, Ordering::Relaxed);
                            let is_sound = match mine {
                                1 => others < 1 << 8,
                                0x100 => others == 0,
                                _ => others & 0xffff == 0,
                            };
                            assert!(is_sound, "{others:#x} beside {mine:#x}");
                            counts[0] += 1;
                            both.push((held, at, mine));
                        }
                        Err(refused) => {
                            assert_eq!(refused.rule(), Rule::ViewInUse);
                            assert!(!both.is_empty(), "{refused}: of nothing that is held");
                            counts[1] += 1;
                        }
                    }
                }
                for (held, at, mine) in both {
                    USERS[at].fetch_sub(mine, Ordering::Relaxed);
                    drop(held);
                }
            }
            counts
        }
    };
    let threads: Vec<_> = (0..8).map(|at| std::thread::spawn(users(at))).collect();
    let counts = threads
        .into_iter()
        .map(|each| each.join().expect("no race"));
    let granted: u32 = counts.map(|[granted, _]| granted).sum();
    assert!(
        granted as usize >= 8 * ROUNDS,
        "the first of two is never refused"
    );
}

/// The caller gives up: the next in the queue is not kept from it, and nothing is left behind.
#[test]
fn a_wait_is_given_up() {
    let array = floats(0x6800_0000, &[4], &[1]);
    let held = Held::new(&array, true).expect("alone");
    let other = array.clone();
    let gave_up = std::thread::spawn(move || {
        let borrow = Borrow::of(&other, true).meeting(Meeting::Waits);
        let place = NonNull::from(Box::leak(Box::new(borrow)));
        let mut looks = 0;
        // SAFETY: in a box of its own, which is dropped below.
        let begun = unsafe {
            Borrow::begin_late(place, || {
                looks += 1;
                match looks {
                    3 => Err(Error::OutOfMemory),
                    _ => Ok(()),
                }
            })
        };
        // SAFETY: leaked above, and in no list: the wait was given up.
        drop(unsafe { Box::from_raw(place.as_ptr()) });
        (begun.is_err(), looks)
    });
    assert_eq!(gave_up.join().expect("no panic"), (true, 3));
    drop(held);
    assert!(held_late(&array, true, Meeting::Waits).is_ok());
}

/// The pause may panic: what a signal handler raises is the end of one, if it is `PanicException`.
#[test]
fn a_wait_that_panics_leaves_the_ledger_as_it_was() {
    let array = floats(0x6900_0000, &[4], &[1]);
    let held = Held::new(&array, true).expect("alone");
    let other = array.clone();
    let panicked = std::thread::spawn(move || {
        let borrow = Borrow::of(&other, true).meeting(Meeting::Waits);
        let waits = Held(NonNull::from(Box::leak(Box::new(borrow))));
        let pause = || -> Result<(), Violation> { panic!("by a signal handler") };
        // SAFETY: in a box of its own until `drop`.
        unsafe { Borrow::begin_late(waits.0, pause) }
    });
    assert!(panicked.join().is_err());
    assert!(Held::new(&array, true).is_err(), "it is still held");
    drop(held);
    assert!(Held::new(&array, true).is_ok());
}

/// However many threads read an array: each of them ends.
#[test]
fn a_writer_waits_for_many_readers() {
    const READERS: usize = if cfg!(miri) { 66 } else { 200 };
    let array = floats(0x6a00_0000, &[4], &[1]);
    let (begun, end) = (Barrier::new(READERS + 1), RwLock::new(()));
    let mut gate = end.write().ok();
    std::thread::scope(|threads| {
        for _ in 0..READERS {
            threads.spawn(|| {
                let reads = Held::new(&array, false).expect("readers alone");
                begun.wait();
                drop(end.read());
                drop(reads);
            });
        }
        begun.wait();
        let mut borrow = Borrow::of(&array, true).meeting(Meeting::Waits);
        let pause = || {
            gate = None;
            std::thread::yield_now();
            Ok::<_, Violation>(())
        };
        // SAFETY: it stands where it is until `end`.
        let waited = unsafe { Borrow::begin_late(NonNull::from(&mut borrow), pause) };
        gate = None;
        // SAFETY: as `begin_late` left it.
        unsafe { Borrow::end(NonNull::from(&mut borrow)) };
        assert!(waited.is_ok(), "{waited:?}");
    });
}

/// A thread of a forked child may have the number of one that waited in the parent.
#[test]
fn what_waited_in_the_parent_does_not_wait_in_a_forked_child() {
    let (left, wanted) = (
        floats(0x6b00_0000, &[4], &[1]),
        floats(0x6b00_1000, &[4], &[1]),
    );
    let of = |array, process: u32, thread| {
        let mut borrow = Borrow::of(array, true).meeting(Meeting::Waits);
        borrow.process = borrow.process.wrapping_sub(process);
        borrow.thread = thread;
        Held(NonNull::from(Box::leak(Box::new(borrow))))
    };
    let (parents, waited, held) = (of(&left, 1, 3), of(&left, 1, 5), of(&wanted, 0, 5));
    // SAFETY: in boxes of their own until `drop`.
    unsafe { Borrow::begin(parents.0) }.expect("alone");
    // SAFETY: the same of this one.
    unsafe { Borrow::begin(held.0) }.expect("alone");
    // SAFETY: in a box of its own; it leaves the queue below.
    LEDGER.with(|list| unsafe { list.queue(waited.0) });
    let mut held = Some(held);
    let mut late = Borrow::of(&wanted, true).meeting(Meeting::Waits);
    let pause = || {
        held = None;
        Ok::<_, Violation>(())
    };
    // SAFETY: it stands where it is until `end`.
    let begun = unsafe { Borrow::begin_late(NonNull::from(&mut late), pause) };
    // SAFETY: as `begin_late` left it.
    unsafe { Borrow::end(NonNull::from(&mut late)) };
    // SAFETY: queued above.
    LEDGER.with(|list| unsafe { list.leave_queue(waited.0) });
    // SAFETY: out of the queue: ours.
    unsafe { waited.0.write(Borrow::NONE) };
    assert!(begun.is_ok(), "{begun:?}");
}
