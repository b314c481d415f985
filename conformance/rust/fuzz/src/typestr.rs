//! Any text as a typestr and as a dtype's name: what is accepted is written as it was read.

use cai_dlpack::protocol::dtype::{DType, TypeStr, reinterpret, reinterpret_typestr};

/// Runs one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let text = text.as_ref();
    if let Some(dtype) = DType::from_name(text) {
        assert_eq!(DType::from_name(&dtype.to_string()), Some(dtype));
    }
    let Ok(any) = TypeStr::parse_any_order(text) else {
        assert!(TypeStr::parse(text).is_err());
        return;
    };
    if let Ok(native) = TypeStr::parse(text) {
        assert_eq!(native, any);
        assert_eq!(TypeStr::parse(&native.to_string()).as_ref(), Ok(&native));
    }
    assert!(any.bits() >= u64::from(any.itemsize()));
    for to in DType::ALL {
        if let Ok(dtype) = any.to_dtype() {
            let _ = reinterpret(dtype, *to);
        }
        let _ = reinterpret_typestr(any, *to);
    }
}
