//! A stream's number keeps no stream alive.

use cai_dlpack::protocol::stream::Stream;
use cudarc::driver::CudaStream;

fn number(stream: &CudaStream) -> Stream {
    Stream::from_cudarc(stream).unwrap()
}

fn main() {
    let _ = number;
}
