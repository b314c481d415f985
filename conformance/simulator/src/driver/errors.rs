//! cuGetErrorName and cuGetErrorString.

use crate::abi::arguments::Out;
use crate::abi::codes::{Answer, Code};
use crate::entry::enter::{Call, exports};

exports! {
    Always 6000 cuGetErrorName(code: u32, text: Out<usize>) = name;
    Always 6000 cuGetErrorString(code: u32, text: Out<usize>) = text;
}

fn name(_: &Call, code: u32, text: Out<usize>) -> Answer {
    put(text, Code(code).name())
}

fn text(_: &Call, code: u32, text: Out<usize>) -> Answer {
    put(text, Code(code).text())
}

/// A code that is not in the table: INVALID_VALUE, and a null pointer.
fn put(out: Out<usize>, text: Option<&'static str>) -> Answer {
    out.put(text.map_or(0, |text| text.as_ptr().expose_provenance()))?;
    text.map(drop).ok_or(Code::INVALID_VALUE)
}
