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
//! 1. A `CudaView` cannot be built from outside cudarc: its fields are private, and it borrows two
//!    events that only a `CudaSlice` has.
//! 2. If it could, dropping its guard would record one of those events or make the host wait. Neither
//!    tells the *producer's* stream anything, and the return edge is what the CUDA Array Interface
//!    asks for.
//! 3. So [`StreamGuard`] is a guard of its own, and cudarc's traits lead to it:
//!    [`PushKernelArg`](cudarc::driver::PushKernelArg) for `&StreamGuard`, so that it is an argument of a launch
//!    as it stands; and [`DeviceSlice`](cudarc::driver::DeviceSlice), [`DevicePtr`](cudarc::driver::DevicePtr)
//!    and [`DevicePtrMut`](cudarc::driver::DevicePtrMut) for [`StreamSlice`], so that cudarc's copies, cuBLAS
//!    and the rest take it. `StreamSlice` exists apart because those traits mean contiguous memory: a
//!    strided array has a pointer, but no length that a copy may run along.
//! 4. `CudaSlice` is not made from a foreign array: it frees what it holds. For functions that take nothing else,
//!    [`StreamGuard::with_untracked_slice`] lends one that is taken apart before it is dropped. It is `unsafe`, as cudarc
//!    remembers the last read alone: of work on two other streams the return edge would miss one.

mod context;
mod guard;
mod in_context;
mod keep;
mod missing;
mod slice;
mod stream;

pub use context::context;
pub use guard::{Consume, StreamGuard};
pub use slice::StreamSlice;
