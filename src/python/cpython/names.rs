//! Interns the names of attributes, keys and keywords once.

use once_cell::race::OnceBox;
use pyo3::prelude::*;
use pyo3::types::PyString;

macro_rules! names {
    ($($field:ident $name:literal;)*) => {
        pub(crate) struct Names {
            $(pub(crate) $field: Py<PyString>,)*
            /// The keys of a CAI dict, in the order of our own export.
            pub(crate) interface: [Py<PyString>; 8],
        }

        impl Names {
            fn new(py: Python<'_>) -> Self {
                crate::python::cpython::compact_int::learn(py);
                let interface =
                    ["shape", "typestr", "data", "strides", "version", "stream", "descr", "mask"];
                Self {
                    $($field: PyString::intern(py, $name).unbind(),)*
                    interface: interface.map(|name| PyString::intern(py, name).unbind()),
                }
            }
        }
    };
}

names! {
    shape "shape";
    typestr "typestr";
    data "data";
    strides "strides";
    version "version";
    stream "stream";
    descr "descr";
    mask "mask";
    is_cai_view "_is_cai_view";
    streams "_streams";
    interface_unordered "_interface";
    cai "__cuda_array_interface__";
    dlpack "__dlpack__";
    dlpack_device "__dlpack_device__";
    cuda_stream "__cuda_stream__";
    max_version "max_version";
    dl_device "dl_device";
    copy "copy";
    exchange_api "__dlpack_c_exchange_api__";
    requires_grad "requires_grad";
    is_conj "is_conj";
    is_neg "is_neg";
    is_sparse "is_sparse";
    is_pinned "is_pinned";
    dtype "dtype";
    module "__module__";
    qualname "__qualname__";
    name "name";
    dunder_name "__name__";
    iter "__iter__";
    isnative "isnative";
    gpu_data "gpu_data";
    device_ctypes_pointer "device_ctypes_pointer";
    value "value";
}

/// Returns the interned names; the first call interns them.
#[inline]
pub(crate) fn names(py: Python<'_>) -> &Names {
    static NAMES: OnceBox<Names> = OnceBox::new();
    NAMES.get_or_init(|| Box::new(Names::new(py)))
}
