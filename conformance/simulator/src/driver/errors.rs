//! cuGetErrorName and cuGetErrorString.

use crate::abi::arguments::Out;
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};

exports! {
    Always 6000 cuGetErrorName(code: u32, text: Out<usize>) = name;
    Always 6000 cuGetErrorString(code: u32, text: Out<usize>) = text;
}

fn name(_: &Call, code: u32, text: Out<usize>) -> Status {
    put(text, Code(code).name())
}

fn text(_: &Call, code: u32, text: Out<usize>) -> Status {
    put(text, Code(code).text())
}

/// Writes a text; for a code that is not in the table, a null pointer with INVALID_VALUE.
fn put(out: Out<usize>, text: Option<&'static str>) -> Status {
    out.put(text.map_or(0, |text| text.as_ptr().expose_provenance()))?;
    text.map(drop).ok_or(Code::INVALID_VALUE)
}
