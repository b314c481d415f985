//! A wrapper becomes an element by a promise, and a promise is `unsafe`.

use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::view::Element;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct E4m3(u8);

impl Element for E4m3 {
    const DTYPE: DType = DType::F8_E4M3FN;
}

fn main() {}
