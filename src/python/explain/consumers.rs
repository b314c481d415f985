//! What the consumers that people hand arrays to accept, ignore and refuse, as far as it decides how to
//! call them. docs/partners.md has the versions that this was read and tried in.

/// One consumer library.
pub(super) struct Consumer {
    pub(super) name: &'static str,
    /// The call that copies nothing; `v` is the view.
    pub(super) call: &'static str,
    /// The protocol that the call goes by.
    pub(super) dlpack: bool,
    /// DLPack device types that it takes; empty for any.
    pub(super) devices: &'static [i32],
    /// It asks for a legacy tensor, which has no read-only flag.
    pub(super) legacy: bool,
    /// It refuses or misreads negative strides.
    pub(super) no_negative_strides: bool,
    /// What it does about streams.
    pub(super) stream: &'static str,
}

const fn dlpack(
    name: &'static str,
    call: &'static str,
    devices: &'static [i32],
    stream: &'static str,
) -> Consumer {
    Consumer {
        name,
        call,
        dlpack: true,
        devices,
        legacy: false,
        no_negative_strides: false,
        stream,
    }
}

const fn cai(name: &'static str, call: &'static str, stream: &'static str) -> Consumer {
    Consumer {
        name,
        call,
        dlpack: false,
        devices: &[2, 3, 13],
        legacy: false,
        no_negative_strides: false,
        stream,
    }
}

pub(super) const CONSUMERS: &[Consumer] = &[
    Consumer {
        no_negative_strides: true,
        ..dlpack(
            "torch",
            "torch.from_dlpack(v)",
            &[1, 2],
            "it names its current stream, which waits for the data",
        )
    },
    dlpack(
        "cupy",
        "cupy.from_dlpack(v)",
        &[2, 13],
        "it names its current stream, which waits for the data",
    ),
    dlpack(
        "numpy",
        "numpy.from_dlpack(v)",
        &[1, 3, 13],
        "it names none and reads at once: the host waits for the data",
    ),
    Consumer {
        legacy: true,
        no_negative_strides: true,
        ..dlpack(
            "jax",
            "jax.dlpack.from_dlpack(v)",
            &[1, 2, 3],
            "it names a stream of its own, which waits for the data",
        )
    },
    Consumer {
        legacy: true,
        ..dlpack(
            "tvm_ffi",
            "tvm_ffi.from_dlpack(v)",
            &[],
            "it names none: the legacy default stream waits; for another one, pass v.on(stream)",
        )
    },
    Consumer {
        legacy: true,
        ..dlpack(
            "tensorflow",
            "tf.experimental.dlpack.from_dlpack(cd.to_dlpack(v, stream=\"host\"))",
            &[1, 2],
            "its streams cannot be named: the host waits for the data",
        )
    },
    dlpack(
        "paddle",
        "paddle.utils.dlpack.from_dlpack(v)",
        &[1, 2, 3],
        "it names its current stream, which waits for the data",
    ),
    Consumer {
        legacy: true,
        ..dlpack(
            "warp",
            "warp.from_dlpack(v)",
            &[1, 2, 3, 13],
            "it names its stream, which waits for the data",
        )
    },
    dlpack(
        "cuda.core",
        "StridedMemoryView.from_dlpack(v, stream_ptr=s)",
        &[1, 2, 3, 13],
        "it names the stream that you pass, which waits for the data",
    ),
    cai(
        "numba",
        "numba.cuda.as_cuda_array(v)",
        "the host waits for the view's stream; pass v.synchronize() to wait where you choose",
    ),
    Consumer {
        no_negative_strides: true,
        ..cai(
            "mpi4py",
            "comm.Send(v, ...)",
            "it ignores the stream: pass v.synchronize()",
        )
    },
    cai(
        "pycuda",
        "kernel(v, ...)",
        "it ignores the stream: pass v.on(stream)",
    ),
    cai(
        "cudf",
        "cudf.Series(v)",
        "it ignores the stream: pass v.synchronize()",
    ),
    cai(
        "rmm",
        "rmm.DeviceBuffer.copy_from_device(v)",
        "it ignores the stream: pass v.synchronize()",
    ),
    cai(
        "cvcuda",
        "nvcv.as_tensor(v)",
        "it ignores the stream: pass v.on(stream)",
    ),
];
