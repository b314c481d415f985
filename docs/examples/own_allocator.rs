//! Memory of an own allocator as a view, and as a DLPack tensor: `cargo run --example own_allocator`.
//!
//! The allocator is told when the last view or tensor of its memory is gone.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner};
use cai_dlpack::{CaiView, Error};

/// Six floats, aligned to a cache line.
struct Block(NonNull<f32>);

const LAYOUT: Layout = match Layout::from_size_align(6 * size_of::<f32>(), 64) {
    Ok(layout) => layout,
    Err(_) => panic!("64 is a power of two"),
};

// SAFETY: the block owns its memory, and nothing else refers to it.
unsafe impl Send for Block {}

impl Block {
    fn new() -> Self {
        // SAFETY: the layout is not of size 0.
        let memory = unsafe { alloc_zeroed(LAYOUT) };
        Self(NonNull::new(memory.cast()).unwrap_or_else(|| handle_alloc_error(LAYOUT)))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        println!("freed");
        // SAFETY: from `alloc_zeroed` with this layout, and freed once.
        unsafe { dealloc(self.0.as_ptr().cast(), LAYOUT) };
    }
}

fn share(block: Block) -> Result<CaiView, Error> {
    let data = block.0.as_ptr().expose_provenance() as u64;
    let raw = RawTensor::new(data, Device::HOST, DType::F32, &[2, 3]);
    let descriptor = Descriptor::new(&raw)?;
    // SAFETY: the elements lie in the block, which the owner keeps; nothing works on a stream.
    Ok(unsafe { CaiView::new(descriptor, Stream::None, Owner::new(block)) })
}

fn main() -> Result<(), Error> {
    let mut view = share(Block::new())?;
    let mut elements = view.typed_mut::<f32>()?;
    // SAFETY: the block lives, and nothing else reads or writes it.
    unsafe { elements.host_slice_mut() }?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);

    let tensor = view.to_dlpack(LiveStream::NONE)?;
    drop(view); // the tensor keeps the block
    let again = CaiView::from_dlpack(tensor, LiveStream::NONE)?;
    let values = again.typed::<f32>()?.copy_to_vec()?;
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    println!("{values:?} of shape {:?}", again.descriptor().shape());
    Ok(())
}
