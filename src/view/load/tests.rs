use std::sync::Arc;
use std::thread;

use super::*;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, Flags};
use crate::protocol::dtype::DType;
use crate::protocol::stream::Stream;
use crate::view::{CaiView, Element, Owner};

/// Every start, size and unit up to a few words, and sizes around the long way's first: the bytes of the source, and
/// no byte beside them.
#[test]
fn every_piece_arrives_and_nothing_beside_it() {
    let source: Vec<u64> = (0..80).map(|i| 0x0101_0101_0101_0101 * i).collect();
    let mut source = source;
    let source: &mut [u8] = bytemuck::cast_slice_mut(&mut source);
    let long = [LONG - 1, LONG, LONG + 3];
    // For Miri there is no long way.
    let long = if cfg!(miri) { &[][..] } else { &long };
    let sizes: Vec<usize> = (0..20).chain(long.iter().copied()).collect();
    for start in 0..9 {
        for nbytes in &sizes {
            for unit in [1, 2, 4, 8] {
                let mut target = vec![0xee_u8; nbytes + 10];
                let (from, to) = (
                    source[start..].as_mut_ptr().cast_const(),
                    target[5..].as_mut_ptr(),
                );
                // SAFETY: within both arrays, which are apart; nothing writes to the source.
                unsafe { copy(from, to, *nbytes, unit) };
                assert_eq!(target[5..5 + nbytes], source[start..start + nbytes]);
                let beside = target[..5].iter().chain(&target[5 + nbytes..]);
                assert!(
                    beside.into_iter().all(|byte| *byte == 0xee),
                    "{start} {nbytes} {unit}"
                );
            }
        }
    }
}

/// A view of atomic integers, which their holder goes on to write.
fn shared<T: Element, U: Send + Sync + 'static>(units: &Arc<[U; 4]>, strides: &[i64]) -> CaiView {
    let dtype: DType = T::DTYPE;
    let descriptor = Descriptor::new(&RawTensor {
        data: units.as_ptr().expose_provenance() as u64,
        byte_offset: 0,
        device: Device::HOST,
        code: dtype.code(),
        bits: dtype.bits(),
        lanes: dtype.lanes(),
        shape: &[4 / strides[0]],
        strides: Some(strides),
        flags: Flags::NONE,
    });
    // SAFETY: elements of the array, which the owner keeps, and which is written by atomic operations of their size.
    unsafe {
        CaiView::new(
            descriptor.expect("a tensor"),
            Stream::None,
            Owner::new(Arc::clone(units)),
        )
    }
}

/// Copies while another thread writes: for Miri a plain or volatile read is a data race here.
fn raced<T: Element, U: Send + Sync + 'static>(
    units: [U; 4],
    strides: &[i64],
    store: fn(&U),
    copy: fn(&CaiView),
) {
    let units = Arc::new(units);
    let view = shared::<T, U>(&units, strides);
    thread::scope(|scope| {
        let writer = scope.spawn(|| units.iter().for_each(store));
        copy(&view);
        writer.join().expect("a writer that ends well");
    });
}

fn to_vec<T: Element>(view: &CaiView) {
    let copied = view.typed::<T>().and_then(|typed| typed.copy_to_vec());
    assert!(!copied.expect("a copy").is_empty());
}

fn to_host(view: &CaiView) {
    view.copy_to_host().expect("a copy");
}

#[test]
fn a_copy_beside_an_atomic_writer_is_no_data_race() {
    for strides in [[1], [2]] {
        for copy in [to_vec::<u8>, to_host] {
            let units = [const { AtomicU8::new(0) }; 4];
            raced::<u8, AtomicU8>(units, &strides, |unit| unit.store(1, Relaxed), copy);
        }
        for copy in [to_vec::<i16>, to_host] {
            let units = [const { AtomicU16::new(0) }; 4];
            raced::<i16, AtomicU16>(units, &strides, |unit| unit.store(1, Relaxed), copy);
        }
        for copy in [to_vec::<f32>, to_host] {
            let units = [const { AtomicU32::new(0) }; 4];
            raced::<f32, AtomicU32>(units, &strides, |unit| unit.store(1, Relaxed), copy);
        }
        for copy in [to_vec::<f64>, to_host] {
            let units = [const { AtomicU64::new(0) }; 4];
            raced::<f64, AtomicU64>(units, &strides, |unit| unit.store(1, Relaxed), copy);
        }
    }
}
