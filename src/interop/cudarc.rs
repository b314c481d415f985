//! Arrays on the streams of cudarc, and its slices as views. Only these files name its safe layer.
//!
//! ```text
//!   a.view().on(&stream)?   the stream waits for the data             StreamGuard
//!     .device_ptr()         the kernel argument                        |
//!     launch                                                           |
//!   drop                    the producer's stream waits for the kernel v
//! ```
//!
//! # Which of cudarc's traits are implemented, and why not `CudaView`
//! 1. A `CudaView` or `CudaSlice` of a foreign array can be made: `CudaStream::upgrade_device_ptr` makes a slice of any
//!    address, and `CudaSlice::leak` takes it apart again, as its drop would free the memory.
//! 2. Such a slice brings two events of its own, by which cudarc orders the uses of the slice on cudarc's streams among each
//!    other. Neither tells the *producer's* stream anything, and the return edge is what the CUDA Array Interface asks for.
//! 3. So [`StreamGuard`] is a guard of its own, and cudarc's traits lead to it:
//!    [`PushKernelArg`](cudarc::driver::PushKernelArg) for `&StreamGuard`, so that it is an argument of a launch
//!    as it stands; and [`DeviceSlice`](cudarc::driver::DeviceSlice), [`DevicePtr`](cudarc::driver::DevicePtr)
//!    and [`DevicePtrMut`](cudarc::driver::DevicePtrMut) for [`StreamSlice`], so that cudarc's copies, cuBLAS
//!    and the rest take it. `StreamSlice` exists apart because those traits mean contiguous memory: a
//!    strided array has a pointer, but no length that a copy may run along.
//! 4. For functions that take nothing else, [`StreamGuard::with_untracked_slice`],
//!    [`with_untracked_view`](StreamGuard::with_untracked_view) and
//!    [`with_untracked_view_mut`](StreamGuard::with_untracked_view_mut) lend a slice so made, inside a guard: the return edge
//!    covers the guard's stream. They are `unsafe`, as cudarc remembers the last read alone: of work on two other streams the
//!    edge would miss one.

mod context;
mod events;
mod guard;
mod in_context;
mod keep;
mod missing;
mod slice;
mod stream;

pub use context::context;
pub use guard::{Consume, StreamGuard};
pub use slice::StreamSlice;
