//! Tensors of the CPU, there and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, Flags};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner};
use cai_tvm_ffi::{Error, tensor_of, view_of};
use tvm_ffi::Tensor;

const VALUES: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

#[test]
fn a_tensor_is_seen_where_it_is_and_kept() {
    let tensor = Tensor::from_slice(&VALUES, &[2, 3]).expect("a tensor");
    let view = view_of(&tensor, LiveStream::NONE).expect("a view");
    assert_eq!(view.descriptor().data(), tensor.data_ptr().addr() as u64);
    assert_eq!(view.descriptor().shape(), [2, 3]);
    assert_eq!(view.descriptor().elem_strides(), [3, 1]);
    drop(tensor);
    let values = view.typed::<f32>().expect("floats").copy_to_vec();
    assert_eq!(values.expect("a copy"), VALUES);
}

/// Says when it is dropped.
struct Ends(
    Arc<AtomicBool>,
    #[expect(dead_code, reason = "kept")] Vec<f32>,
);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A transposed matrix, and whether it has been freed.
fn transposed(flags: Flags) -> (CaiView, Arc<AtomicBool>) {
    let values = VALUES.to_vec();
    let data = values.as_ptr().expose_provenance() as u64;
    let raw = RawTensor::new(data, Device::HOST, DType::F32, &[3, 2])
        .with_elem_strides(&[1, 3])
        .with_flags(flags);
    let descriptor = Descriptor::new(&raw);
    let ended = Arc::new(AtomicBool::new(false));
    let owner = Owner::new(Ends(Arc::clone(&ended), values));
    // SAFETY: the owner keeps the values.
    let view = unsafe { CaiView::new(descriptor.expect("a tensor"), Stream::None, owner) };
    (view, ended)
}

#[test]
fn a_view_is_seen_where_it_is_and_kept() {
    let (view, ended) = transposed(Flags::NONE);
    let tensor = tensor_of(&view, LiveStream::NONE).expect("a tensor");
    assert_eq!(tensor.data_ptr().addr() as u64, view.descriptor().data());
    assert_eq!(
        (tensor.shape(), tensor.strides()),
        (&[3, 2][..], &[1, 3][..])
    );
    drop(view);
    let back = view_of(&tensor, LiveStream::NONE).expect("a view");
    drop(tensor);
    let values = back.typed::<f32>().expect("floats").copy_to_vec();
    assert_eq!(values.expect("a copy"), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert!(!ended.load(Ordering::SeqCst));
    std::thread::spawn(move || drop(back))
        .join()
        .expect("dropped");
    assert!(ended.load(Ordering::SeqCst));
}

#[test]
fn read_only_data_is_not_given_to_who_cannot_say_so() {
    let (view, ended) = transposed(Flags::READ_ONLY);
    match tensor_of(&view, LiveStream::NONE) {
        Err(Error::Cai(cai_dlpack::Error::Violation(refused))) => {
            assert_eq!(refused.rule(), Rule::ReadOnlyLegacy);
        }
        other => panic!("{:?}", other.map(|tensor| tensor.ndim())),
    }
    drop(view);
    assert!(ended.load(Ordering::SeqCst));
}
