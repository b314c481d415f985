//! The table: a library, a row.
//!
//! A row states every fact of [`Partner`] and, by the functions below, those that no producer or call is
//! without; what a row leaves out is usual.

use super::reads::Reads;
use super::refuses::Refuses;
use super::refuses::Refuses::{
    AxesAbove, Backwards, BeyondDlpack, BeyondNumpy, BitGaps, BitItems, DType, Empty,
    EmptyBackwards, Except, FieldsBeyondNumpy, Gaps, Lanes, NegativeBesideEmpty, NegativeStrides,
    NoAxes, NoFormat, NotCOrder, NotContiguous, OneDType, OtherCpu, OutOfOrder, Packed, Padded,
    ReadOnly, SubByte, UnevenOffset, UnevenStrides,
};
use super::row::Checked::{Matrix, MatrixHost, Source, Test, Torch};
use super::row::Mutability::{Immutable, Mutable, Unknown};
use super::row::Quirk::{AbortsOnDtype, IgnoresStream, MislabelsBfloat16, WantsCurrentDevice};
use super::row::{Call, Drops, Fault, Partner, Producer, Silence, Waits};
use crate::protocol::device::DeviceType;

const CPU: DeviceType = DeviceType::CPU;
const CUDA: DeviceType = DeviceType::CUDA;
const CUDA_HOST: DeviceType = DeviceType::CUDA_HOST;
const METAL: DeviceType = DeviceType::METAL;
const ROCM: DeviceType = DeviceType::ROCM;
const ROCM_HOST: DeviceType = DeviceType::ROCM_HOST;
const CUDA_MANAGED: DeviceType = DeviceType::CUDA_MANAGED;

const HOST_READABLE: &[DeviceType] = &[CPU, CUDA_HOST, CUDA_MANAGED];
const HOST_READABLE_BY_NUMPY: &[DeviceType] = &[CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED];
const HOST_OR_CUDA: &[DeviceType] = &[CPU, CUDA, CUDA_HOST, CUDA_MANAGED];
const CUDA_READABLE: &[DeviceType] = &[CUDA, CUDA_HOST, CUDA_MANAGED];
const BOTH: &[Reads] = &[Reads::Interface, Reads::Dlpack];
/// NumPy, and what is made of its arrays.
const NO_NUMPY_DTYPE: &[Refuses] = &[
    DType("bfloat16"),
    DType("float8"),
    DType("complex32"),
    SubByte,
    Lanes,
];

/// A producer's usual facts, and those that it must state.
const fn producer(call: &'static str, silence: Silence, evidence: &'static str) -> Producer {
    Producer {
        call,
        exports: &[Reads::Dlpack],
        devices: &[CUDA],
        quirks: &[],
        silence,
        evidence,
        untold: None,
        read_only: &[],
        refuses: "",
    }
}

/// A producer of the CUDA Array Interface alone.
const fn by_interface(call: &'static str, silence: Silence, evidence: &'static str) -> Producer {
    Producer {
        exports: &[Reads::Interface],
        ..producer(call, silence, evidence)
    }
}

/// A call's usual facts, and those that it must state.
const fn call(import: &'static str, code: &'static str, reads: Reads, waits: Waits) -> Call {
    Call {
        import,
        code,
        reads,
        waits,
        waits_if: "",
        advice: "",
        devices: &[],
        by_build: &[],
        build: "",
        refuses: &[],
        aborts: &[],
        ignores: "",
        drops: &[],
        copies: false,
        passes_stream: false,
        looks_at_buffer: false,
        takes_capsules: false,
        own: "",
    }
}

/// A call that reads `__cuda_array_interface__`, which describes memory that CUDA can read.
const fn interface(import: &'static str, code: &'static str, waits: Waits) -> Call {
    Call {
        devices: CUDA_READABLE,
        ..call(import, code, Reads::Interface, waits)
    }
}

/// How KvikIO and UCXX read what has no interface, by one class: a buffer in C or Fortran order.
const fn of_host(import: &'static str, code: &'static str) -> Call {
    Call {
        devices: &[CPU],
        refuses: &[NoFormat, NotContiguous],
        ..call(import, code, Reads::Buffer, Waits::Host)
    }
}

/// The partners, in the order of docs/partners.md.
pub static PARTNERS: &[Partner] = &[
    Partner {
        name: "numpy",
        title: "NumPy",
        aliases: &["np"],
        distribution: "numpy",
        distributions: &[],
        modules: &["numpy"],
        version: "2.4.6",
        checked: Matrix,
        producer: Some(Producer {
            exports: &[Reads::Dlpack, Reads::ArrayInterface, Reads::Buffer],
            devices: &[CPU],
            refuses: "masked arrays, which `cd.split_masked(a)` splits; objects",
            ..producer(
                "cd.view(a)",
                Silence::Ready,
                "host memory; ml_dtypes' types, records, text, dates and the other byte order, which it does not export, come by `__array_interface__`",
            )
        }),
        array: None,
        call: Call {
            devices: HOST_READABLE_BY_NUMPY,
            refuses: NO_NUMPY_DTYPE,
            drops: &[Drops::EmptyReadOnly],
            ..call(
                "import numpy as np",
                "np.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Host,
            )
        },
        more: &[
            Call {
                devices: HOST_READABLE,
                refuses: &[Packed, Lanes, BeyondNumpy, FieldsBeyondNumpy],
                advice: "types that NumPy does not have come as those of ml_dtypes",
                ..call(
                    "import numpy as np",
                    "np.asarray(v)",
                    Reads::ArrayInterface,
                    Waits::Host,
                )
            },
            Call {
                devices: CUDA_READABLE,
                refuses: NO_NUMPY_DTYPE,
                copies: true,
                ..call(
                    "import numpy as np",
                    "np.from_dlpack(v, device=\"cpu\")",
                    Reads::Dlpack,
                    Waits::Host,
                )
            },
        ],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "numba",
        title: "Numba",
        aliases: &["numba.cuda"],
        distribution: "numba-cuda",
        distributions: &[],
        // numba-cuda installs its modules as `numba.cuda...`; none can be imported as `numba_cuda.numba.cuda...`.
        modules: &["numba"],
        version: "0.30.4",
        checked: Matrix,
        producer: Some(by_interface(
            "cd.view(a)",
            Silence::LegacyDefault,
            "`cudadrv/devicearray.py`: `DeviceNDArray` exports None for stream 0, on which its kernels run; `CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM` makes that each thread's own",
        )),
        array: None,
        call: Call {
            waits_if: "numba.config.CUDA_ARRAY_INTERFACE_SYNC",
            refuses: &[BeyondNumpy],
            drops: &[Drops::ReadOnly, Drops::Fields],
            ..interface(
                "import numba.cuda",
                "numba.cuda.as_cuda_array(v)",
                Waits::Host,
            )
        },
        more: &[],
        launch: Some(Call {
            // It takes an address of the host, too, as if it were one of the device.
            devices: CUDA_READABLE,
            refuses: &[
                BeyondDlpack,
                SubByte,
                Lanes,
                DType("float8"),
                DType("complex32"),
            ],
            own: "kernel",
            looks_at_buffer: true,
            ..call(
                "import numba.cuda",
                "kernel[1, 1, s](v)",
                Reads::Dlpack,
                Waits::Stream,
            )
        }),
        faults: &[
            Fault {
                what: "exports a broadcast array as a contiguous one, which reaches past its memory; `check=\"bounds\"` refuses it",
                reproduction: "`DeviceNDArray((3, 2), (0, 8), \"f8\", gpu_data=a.gpu_data).__cuda_array_interface__[\"strides\"]`",
                report: None,
            },
            Fault {
                what: "takes an array with the interface alone for one in C order in a kernel, if its last stride is eight items; a view is read by DLPack",
                reproduction: "`typeof(array, Purpose.argument).layout` of `numba.cuda.typing.typeof`, of such an object",
                report: None,
            },
        ],
    },
    Partner {
        name: "cuda.core",
        title: "cuda.core",
        aliases: &["cuda.core.utils"],
        distribution: "cuda-core",
        distributions: &[],
        modules: &["cuda.core"],
        version: "1.2.2",
        checked: Matrix,
        producer: Some(Producer {
            quirks: &[IgnoresStream],
            ..producer(
                "cd.view(buf, producer_stream=s)",
                Silence::Unknown,
                "`_memory/_buffer.pyx`: `Buffer.__dlpack__` ignores `stream`; the work stream of `StridedMemoryView`'s table is NULL",
            )
        }),
        array: Some("cuda.core.utils.StridedMemoryView"),
        call: Call {
            devices: &[CPU, CUDA, CUDA_HOST, CUDA_MANAGED],
            refuses: &[OtherCpu],
            advice: "for memory of the CPU, pass -1",
            drops: &[Drops::BitAxes, Drops::TypeBeyondNumpy],
            passes_stream: true,
            ..call(
                "from cuda.core.utils import StridedMemoryView",
                "StridedMemoryView.from_dlpack(v, stream_ptr=s)",
                Reads::Dlpack,
                Waits::Stream,
            )
        },
        more: &[Call {
            refuses: &[BeyondNumpy, UnevenStrides],
            ..interface(
                "from cuda.core.utils import StridedMemoryView",
                "StridedMemoryView.from_cuda_array_interface(v, stream_ptr=s)",
                Waits::Stream,
            )
        }],
        launch: None,
        faults: &[Fault {
            what: "a `StridedMemoryView` of an empty device array exports itself as the CPU's",
            reproduction: "`from_cuda_array_interface`, then `__dlpack_device__()`",
            report: None,
        }],
    },
    Partner {
        name: "tvm_ffi",
        title: "tvm-ffi",
        aliases: &["tvm"],
        distribution: "apache-tvm-ffi",
        distributions: &[],
        modules: &["tvm_ffi"],
        version: "0.1.15.post2",
        checked: Matrix,
        producer: Some(Producer {
            devices: &[CPU, CUDA],
            quirks: &[IgnoresStream],
            untold: Some(Mutable),
            ..producer(
                "cd.view(t, producer_stream=s)",
                Silence::Unknown,
                "`cython/tensor.pxi`: `Tensor.__dlpack__` does not read `stream`, and the type has no table",
            )
        }),
        array: None,
        call: Call {
            advice: "for another stream, pass `v.on(s)`",
            refuses: &[Padded],
            drops: &[Drops::ReadOnly],
            takes_capsules: true,
            ..call(
                "import tvm_ffi",
                "tvm_ffi.from_dlpack(v)",
                Reads::Dlpack,
                Waits::WorkStream,
            )
        },
        more: &[],
        launch: None,
        faults: &[
            Fault {
                what: "what an exchange table refuses by `BufferError` it asks for again by `__dlpack__()`, without stream and version",
                reproduction: "`tvm_ffi.from_dlpack(v)` of read-only data in a capture that forbids the order: the error would be `read-only-legacy`",
                report: None,
            },
            Fault {
                what: "keeps a tensor for good if there is no memory for its own object: `MemoryError`, and the tensor never ends",
                reproduction: "`_testcapi.set_nomemory(n, n + 1)` before `tvm_ffi.from_dlpack(a)`; `sys.getrefcount(a)` has grown",
                report: None,
            },
        ],
    },
    Partner {
        name: "nanobind",
        title: "nanobind",
        aliases: &["nb"],
        distribution: "nanobind",
        distributions: &[],
        modules: &["nanobind"],
        version: "3.1.0",
        checked: Test,
        producer: Some(Producer {
            devices: &[CPU, CUDA],
            quirks: &[IgnoresStream],
            ..producer(
                "cd.view(a, producer_stream=s)",
                Silence::Unknown,
                "`nb_ndarray.cpp`: `nb_ndarray_dlpack` accepts `stream` and ignores it",
            )
        }),
        array: None,
        call: Call {
            advice: "in a capture, or if it launches on another stream: `with cd.use_stream(s): function(v)`",
            refuses: &[AxesAbove(128)],
            ignores: "what the argument leaves open: device, type, axes, order; read-only data goes to one of `const` elements alone",
            takes_capsules: true,
            ..call(
                "import extension",
                "function(v)",
                Reads::Dlpack,
                Waits::LegacyDefault,
            )
        },
        more: &[],
        launch: None,
        faults: &[Fault {
            what: "clears every error of `__dlpack__`: what is refused is read as \"incompatible function arguments\"; \
                   `cd.explain(v, to=\"nanobind\")` has the reason",
            reproduction: "`function(v)` of a `v` that is ready on a captured stream, without `cd.use_stream`",
            report: None,
        }],
    },
    Partner {
        name: "warp",
        title: "Warp",
        aliases: &["wp"],
        distribution: "warp-lang",
        distributions: &["nvidia-warp"],
        modules: &["warp"],
        version: "1.19.0",
        checked: Matrix,
        producer: Some(Producer {
            exports: BOTH,
            devices: &[CPU, CUDA],
            untold: Some(Mutable),
            quirks: &[MislabelsBfloat16],
            ..producer(
                "cd.view(a)",
                Silence::Unknown,
                "`_src/types.py`: its dict is of version 2; kernels run on `device.stream`, which it makes for each device, and which `__dlpack__` orders",
            )
        }),
        array: None,
        call: Call {
            advice: "call `wp.init()` before, which no call of it makes",
            devices: &[CPU, CUDA, CUDA_HOST, CUDA_MANAGED],
            refuses: &[
                ReadOnly,
                NoAxes,
                AxesAbove(4),
                DType("complex"),
                DType("float8"),
                SubByte,
                EmptyBackwards,
            ],
            ignores: "`byte_offset`, which is 0",
            drops: &[Drops::ReadOnly, Drops::Lanes],
            ..call(
                "import warp as wp",
                "wp.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Stream,
            )
        },
        more: &[],
        launch: None,
        faults: &[
            Fault {
                what: "arrays without axes: IndexError",
                reproduction: "`wp.init(); wp.from_dlpack(np.zeros(()))`",
                report: None,
            },
            Fault {
                what: "makes an axis of the lanes of a type, and divides the other strides by their number: it reads other elements",
                reproduction: "`wp.from_dlpack(v).strides` of a `v` of float32x2",
                report: None,
            },
        ],
    },
    Partner {
        name: "pycuda",
        title: "PyCUDA",
        aliases: &["pycuda.driver"],
        distribution: "pycuda",
        distributions: &[],
        modules: &["pycuda"],
        version: "2026.1",
        checked: Matrix,
        producer: Some(by_interface(
            "cd.view(a, producer_stream=s.handle)",
            Silence::LegacyDefault,
            "`gpuarray.py`: `GPUArray` always exports None; its kernels run on the NULL stream unless they are passed one",
        )),
        array: None,
        call: Call {
            advice: "pass `v.on(s.handle)`",
            ignores: "all but the address: shape, strides and type are the kernel's own affair",
            drops: &[Drops::ReadOnly],
            ..interface(
                "import pycuda.driver",
                "kernel(v, block=(1, 1, 1))",
                Waits::Nobody,
            )
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "jax",
        title: "JAX",
        aliases: &["jnp", "jax.numpy"],
        distribution: "jax",
        distributions: &["jaxlib", "jax-cuda*-plugin", "jax-cuda*-pjrt"],
        modules: &["jax", "jaxlib"],
        version: "0.10.2",
        checked: MatrixHost,
        producer: Some(Producer {
            exports: BOTH,
            devices: &[CPU, CUDA],
            read_only: &[CUDA],
            untold: Some(Immutable),
            ..producer(
                "cd.view(a)",
                Silence::Unknown,
                "`jaxlib/py_array.cc`: its dict is of version 2 and does not wait; `__dlpack__` does (`WaitUntilBufferReadyOnStream`)",
            )
        }),
        array: None,
        call: Call {
            devices: &[CPU, CUDA, CUDA_HOST],
            by_build: &[CUDA, CUDA_HOST],
            refuses: &[ReadOnly, Gaps, DType("complex32"), SubByte, Lanes, OtherCpu],
            ignores: "on the CPU it copies what is not aligned to 64 bytes, without a word",
            drops: &[Drops::Width],
            ..call(
                "import jax",
                "jax.dlpack.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Stream,
            )
        },
        more: &[Call {
            advice: "streams 1 and 2 are not waited for: pass `v.synchronize()`, or `v.on(s)` of a handle",
            by_build: CUDA_READABLE,
            refuses: &[Gaps, BeyondDlpack, BeyondNumpy],
            ignores: "it keeps no reference to the view; it copies memory of the CPU, which it takes too, by NumPy",
            drops: &[Drops::Width],
            ..interface("import jax.numpy as jnp", "jnp.asarray(v)", Waits::Stream)
        }],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "tensorflow",
        title: "TensorFlow",
        aliases: &["tf"],
        distribution: "tensorflow-cpu",
        distributions: &[
            "tensorflow",
            "tensorflow-gpu",
            "tensorflow-intel",
            "tf-nightly",
        ],
        modules: &["tensorflow"],
        version: "2.21.0",
        checked: MatrixHost,
        producer: Some(Producer {
            devices: &[CPU, CUDA],
            quirks: &[AbortsOnDtype],
            untold: Some(Immutable),
            refuses: "strings, resources, variants and quantized types",
            ..producer(
                "cd.view(t)",
                Silence::Ready,
                "`c/eager/c_api.cc`: `TFE_TensorHandleDevicePointer`, which the export calls, waits by `device->Sync()`",
            )
        }),
        array: None,
        call: Call {
            devices: &[CPU, CUDA],
            by_build: &[CUDA],
            refuses: &[
                ReadOnly,
                NotCOrder,
                DType("float8"),
                DType("complex32"),
                SubByte,
            ],
            drops: &[Drops::Lanes],
            ..call(
                "import tensorflow as tf",
                "tf.experimental.dlpack.from_dlpack(cd.to_dlpack(v, stream=\"host\"))",
                Reads::Capsule,
                Waits::Host,
            )
        },
        more: &[],
        launch: None,
        faults: &[
            Fault {
                what: "does not look at the lanes of a type: float32x2 of 2 x 3 arrives as float32 of 2 x 3",
                reproduction: "`tf.experimental.dlpack.from_dlpack(cd.to_dlpack(v)).shape` of such a `v`",
                report: None,
            },
            Fault {
                what: "a tensor of strings ends the process; through the bridge a refusal",
                reproduction: "`tf.constant(\"x\").__dlpack__()`",
                report: None,
            },
            Fault {
                what: "refuses a device that it does not have, calls the deleter and leaves the capsule's name, so that \
                       the capsule calls it again: a double free; a capsule of the bridge does not",
                reproduction: "`tf.experimental.dlpack.from_dlpack(capsule)` of device memory, on a machine without a \
                               GPU; then `del capsule`",
                report: None,
            },
        ],
    },
    Partner {
        name: "paddle",
        title: "Paddle",
        aliases: &[],
        distribution: "paddlepaddle",
        distributions: &["paddlepaddle-gpu"],
        modules: &["paddle"],
        version: "3.3.1",
        checked: MatrixHost,
        producer: Some(Producer {
            exports: BOTH,
            devices: &[CPU, CUDA],
            untold: Some(Mutable),
            quirks: &[MislabelsBfloat16],
            ..producer(
                "cd.view(t)",
                Silence::Unknown,
                "its dict is of version 2; its table names the stream that it works on",
            )
        }),
        array: Some("paddle.Tensor"),
        call: Call {
            devices: &[CPU, CUDA, CUDA_HOST],
            by_build: &[CUDA],
            build: "paddle.version.cuda_version",
            refuses: &[
                OneDType("float8_e4m3"),
                DType("float8_e3m4"),
                DType("float8_e4m3b11fnuz"),
                DType("float8_e4m3fnuz"),
                DType("float8_e5m2fnuz"),
                DType("float8_e8m0fnu"),
                DType("complex32"),
                SubByte,
                Lanes,
                AxesAbove(9),
            ],
            ignores: "`byte_offset`, which is 0",
            drops: &[Drops::ReadOnly],
            takes_capsules: true,
            ..call(
                "import paddle",
                "paddle.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Stream,
            )
        },
        more: &[],
        launch: None,
        faults: &[
            Fault {
                what: "takes uint16 for bfloat16",
                reproduction: "`paddle.from_dlpack(np.zeros(3, np.uint16)).dtype`",
                report: None,
            },
            Fault {
                what: "calls no deleter of a tensor whose `manager_ctx` is NULL, and so keeps its memory for good; that of \
                       ours is not NULL",
                reproduction: "`paddle.from_dlpack(x)` of such a tensor; then `del` of what it returns",
                report: None,
            },
            Fault {
                what: "negative strides: asks for 2^64 bytes less a few, MemoryError",
                reproduction: "`paddle.from_dlpack(np.arange(4)[::-1]).numpy()`",
                report: None,
            },
            Fault {
                what: "device memory, by a build without CUDA: segmentation fault before the array is asked for anything; \
                       through `cd.to` a refusal",
                reproduction: "`paddle.from_dlpack(v)` of a `v` on a device",
                report: None,
            },
            Fault {
                what: "imported after TensorFlow 2.21.0: segmentation fault in protobuf",
                reproduction: "`import tensorflow, paddle`",
                report: None,
            },
        ],
    },
    Partner {
        name: "onnxruntime",
        title: "ONNX Runtime",
        aliases: &["ort", "onnx"],
        distribution: "onnxruntime",
        distributions: &["onnxruntime-gpu"],
        modules: &["onnxruntime"],
        version: "1.31.1",
        checked: MatrixHost,
        producer: Some(Producer {
            devices: &[CPU, CUDA],
            quirks: &[IgnoresStream],
            untold: Some(Unknown),
            ..producer(
                "cd.view(value)",
                Silence::Unknown,
                "`onnxruntime_inference_collection.py`: `OrtValue.__dlpack__` does not use `stream`",
            )
        }),
        array: None,
        call: Call {
            devices: &[CPU, CUDA],
            advice: "on a device, pass `cd.to_dlpack(v, stream=\"host\")`",
            refuses: &[
                ReadOnly,
                NotCOrder,
                DType("bool"),
                DType("complex"),
                DType("float8"),
                SubByte,
                Lanes,
            ],
            ignores: "`byte_offset`, which is 0",
            takes_capsules: true,
            ..call(
                "from onnxruntime import OrtValue",
                "OrtValue.from_dlpack(v)",
                Reads::Dlpack,
                Waits::LegacyDefault,
            )
        },
        more: &[],
        launch: None,
        faults: &[Fault {
            what: "sends bool as uint8",
            reproduction: "`np.from_dlpack(OrtValue.ortvalue_from_numpy(np.ones(2, bool))).dtype`",
            report: None,
        }],
    },
    Partner {
        name: "pyarrow",
        title: "pyarrow",
        aliases: &["pa", "arrow"],
        distribution: "pyarrow",
        distributions: &[],
        modules: &["pyarrow"],
        version: "26.0.1",
        checked: MatrixHost,
        producer: Some(Producer {
            read_only: &[CPU],
            devices: &[CPU],
            refuses: "booleans, which it packs into bits",
            ..producer("cd.view(a)", Silence::Ready, "host memory")
        }),
        array: None,
        call: Call {
            devices: &[CPU],
            refuses: &[
                NegativeBesideEmpty,
                DType("bool"),
                DType("complex"),
                DType("bfloat16"),
                DType("float8"),
                SubByte,
                Lanes,
            ],
            ..call(
                "import pyarrow as pa",
                "pa.Tensor.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Host,
            )
        },
        more: &[Call {
            devices: HOST_READABLE,
            refuses: &[BeyondDlpack, NoFormat, NotContiguous],
            drops: &[Drops::Layout],
            ..call(
                "import pyarrow as pa",
                "pa.py_buffer(v)",
                Reads::Buffer,
                Waits::Host,
            )
        }],
        launch: None,
        faults: &[Fault {
            what: "a buffer of size 0 at address NULL aborts the process",
            reproduction: "`pa.py_buffer` of such an exporter; ours is never NULL",
            report: None,
        }],
    },
    Partner {
        name: "array_api_strict",
        title: "array-api-strict",
        aliases: &[],
        distribution: "array-api-strict",
        distributions: &[],
        modules: &["array_api_strict"],
        version: "2.6.1",
        checked: MatrixHost,
        producer: Some(Producer {
            devices: &[CPU],
            ..producer("cd.view(a)", Silence::Ready, "host memory")
        }),
        array: None,
        call: Call {
            devices: HOST_READABLE_BY_NUMPY,
            refuses: &[
                DType("float16"),
                DType("bfloat16"),
                DType("float8"),
                DType("complex32"),
                SubByte,
                Lanes,
            ],
            drops: &[Drops::EmptyReadOnly],
            ..call(
                "import array_api_strict as strict",
                "strict.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Host,
            )
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "mpi4py",
        title: "mpi4py",
        aliases: &["mpi"],
        distribution: "mpi4py",
        distributions: &[],
        modules: &["mpi4py"],
        version: "4.1.2",
        checked: Matrix,
        producer: None,
        array: None,
        call: Call {
            devices: &[CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED],
            by_build: &[CUDA, ROCM],
            advice: "pass `v.synchronize()`",
            refuses: &[
                NotContiguous,
                OutOfOrder,
                Padded,
                BitItems,
                OneDType("complex32"),
            ],
            ignores: "an MPI without a type for float16, as builds of Open MPI, refuses it by `MPI_ERR_TYPE`",
            ..call(
                "from mpi4py import MPI",
                "comm.Send(v, dest=1)",
                Reads::BufferOrDlpack,
                Waits::Nobody,
            )
        },
        more: &[],
        launch: None,
        faults: &[Fault {
            what: "counts a byte for each packed element that is smaller: it sends, and receives into, what lies \
                   past the end; through the bridge a refusal",
            reproduction: "`MPI.memory(t).nbytes` of a packed int4 tensor `t` of 8 elements, in 4 bytes",
            report: None,
        }],
    },
    Partner {
        name: "torch",
        title: "torch",
        aliases: &["pytorch"],
        distribution: "torch",
        distributions: &[],
        modules: &["torch"],
        version: "2.15.0",
        checked: Torch,
        producer: Some(Producer {
            exports: BOTH,
            devices: &[CPU, CUDA],
            untold: Some(Mutable),
            quirks: &[MislabelsBfloat16, WantsCurrentDevice],
            refuses: "what requires grad, is conjugated, sparse, quantized or on `meta`",
            ..producer(
                "cd.view(t)",
                Silence::Unknown,
                "`torch/_tensor.py`: its dict is of version 2; its table and `__dlpack__` know its current stream",
            )
        }),
        array: Some("torch.Tensor"),
        call: Call {
            devices: &[CPU, CUDA, METAL],
            by_build: &[CUDA],
            build: "torch.version.cuda",
            refuses: &[
                Backwards,
                Except("float4_e2m1fnx2", &[SubByte, Lanes]),
                Padded,
                UnevenOffset,
                OneDType("float8_e3m4"),
                OneDType("float8_e4m3"),
                OneDType("float8_e4m3b11fnuz"),
            ],
            aborts: &[Backwards],
            drops: &[Drops::ReadOnly],
            takes_capsules: true,
            ..call(
                "import torch",
                "torch.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Stream,
            )
        },
        more: &[Call {
            devices: &[CUDA],
            by_build: &[CUDA],
            build: "torch.version.cuda",
            advice: "pass `v.on(s)` of torch's current stream, or use `torch.from_dlpack(v)`",
            refuses: &[ReadOnly, NegativeStrides, BeyondDlpack],
            ..interface(
                "import torch",
                "torch.as_tensor(v, device=\"cuda\")",
                Waits::Nobody,
            )
        }],
        launch: None,
        faults: &[
            Fault {
                what: "exports `torch.int1` to `torch.int7` and `torch.uint1` to `torch.uint7` as int8 and uint8",
                reproduction: "`torch.utils.dlpack.from_dlpack(torch.zeros(3, dtype=torch.int4)).dtype`",
                report: None,
            },
            Fault {
                what: "its `__dlpack__` forgets the negative bit: +2 is handed out for -2; through the bridge a refusal",
                reproduction: "`np.from_dlpack(torch.tensor([1+2j]).conj().imag)`",
                report: None,
            },
            Fault {
                what: "2.11.0 ends the process by SIGABRT for negative strides, where 2.15.0 raises; `cd.to` refuses them before",
                reproduction: "`torch.from_dlpack(np.arange(4.0)[::-1])`",
                report: None,
            },
        ],
    },
    Partner {
        name: "cupy",
        title: "CuPy",
        aliases: &["cp"],
        distribution: "cupy-cuda13x",
        distributions: &["cupy", "cupy-cuda*x", "cupy-cuda*"],
        modules: &["cupy"],
        version: "15.0.0a1",
        checked: Source,
        producer: Some(Producer {
            exports: BOTH,
            untold: Some(Mutable),
            quirks: &[WantsCurrentDevice],
            ..producer(
                "cd.view(a)",
                Silence::Unknown,
                "`_core/core.pyx`: its dict names the current stream, and none with `CUPY_CUDA_ARRAY_INTERFACE_EXPORT_VERSION=2`",
            )
        }),
        array: None,
        call: Call {
            devices: &[CUDA, CUDA_MANAGED],
            refuses: &[DType("float8"), DType("complex32"), SubByte, Lanes],
            drops: &[Drops::ReadOnly],
            ..call(
                "import cupy",
                "cupy.from_dlpack(v)",
                Reads::Dlpack,
                Waits::Stream,
            )
        },
        more: &[Call {
            refuses: &[BeyondNumpy],
            drops: &[Drops::ReadOnly],
            ..interface("import cupy", "cupy.asarray(v)", Waits::Host)
        }],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "cudf",
        title: "cuDF",
        aliases: &["pylibcudf"],
        distribution: "cudf-cu13",
        distributions: &["cudf-cu*", "pylibcudf-cu*"],
        modules: &["cudf", "pylibcudf"],
        version: "6a22d1d",
        checked: Source,
        producer: Some(Producer {
            exports: &[Reads::Interface, Reads::Capsule],
            untold: Some(Unknown),
            refuses: "columns with nulls as one array: `cd.split_masked(x)`",
            ..producer(
                "cd.view(x, producer_stream=s)",
                Silence::LegacyDefault,
                "`pylibcudf/utils.pyx`, `default_stream.cpp`: the stream that every call works on; `CUDF_PER_THREAD_STREAM` makes it each thread's own",
            )
        }),
        array: None,
        call: Call {
            advice: "pass `v.on(1)`",
            refuses: &[NoAxes, BeyondDlpack],
            drops: &[Drops::ReadOnly],
            ..interface("import cudf", "cudf.Series(v)", Waits::Nobody)
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "rmm",
        title: "RMM",
        aliases: &[],
        distribution: "rmm-cu13",
        distributions: &["rmm-cu*", "librmm-cu*"],
        modules: &["rmm"],
        version: "5d50a37",
        checked: Source,
        producer: Some(by_interface(
            "cd.view(x, producer_stream=s)",
            Silence::Unknown,
            "`pylibrmm/device_buffer.pyx`: its dict is of version 0; it is filled on the stream that it was passed, and waits for the default one only",
        )),
        array: None,
        call: Call {
            advice: "pass `v.on(s)` of the stream that the call is passed",
            refuses: &[NotCOrder, AxesAbove(1)],
            copies: true,
            ..interface(
                "import rmm",
                "buffer.copy_from_device(v, stream=s)",
                Waits::Nobody,
            )
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "pylibraft",
        title: "pylibraft",
        aliases: &["raft"],
        distribution: "pylibraft-cu13",
        distributions: &["pylibraft-cu*"],
        modules: &["pylibraft"],
        version: "2141422",
        checked: Source,
        producer: Some(by_interface(
            "cd.view(x, producer_stream=s)",
            Silence::Unknown,
            "`common/device_ndarray.py`: its dict is NumPy's, of version 3 without `stream`; a function that is passed a handle writes on its stream and does not wait",
        )),
        array: None,
        call: Call {
            advice: "pass `v.synchronize()`",
            refuses: &[NotContiguous],
            ..interface(
                "from pylibraft.common import cai_wrapper",
                "cai_wrapper(v)",
                Waits::Nobody,
            )
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "xgboost",
        title: "XGBoost",
        aliases: &["xgb"],
        distribution: "xgboost",
        distributions: &["xgboost-cpu"],
        modules: &["xgboost"],
        version: "379b29f",
        checked: Source,
        producer: None,
        array: None,
        call: Call {
            advice: "stream 1 is not waited for: pass `v.synchronize()`, or `v.on(s)` of a handle",
            by_build: CUDA_READABLE,
            refuses: &[
                AxesAbove(2),
                NegativeStrides,
                DType("bool"),
                DType("complex"),
                BeyondDlpack,
            ],
            drops: &[Drops::ReadOnly],
            ..interface("import xgboost", "xgboost.DMatrix(v)", Waits::Stream)
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "nvidia.dali",
        title: "DALI",
        aliases: &["dali"],
        distribution: "nvidia-dali-cuda130",
        distributions: &["nvidia-dali-cuda*", "nvidia-dali-nightly-cuda*"],
        modules: &["nvidia.dali"],
        version: "version not recorded",
        checked: Source,
        producer: Some(Producer {
            exports: BOTH,
            untold: Some(Unknown),
            ..producer(
                "cd.view(x, producer_stream=s)",
                Silence::Unknown,
                "`ArrayInterfaceRepr` does not wait for the order of a GPU tensor",
            )
        }),
        array: None,
        call: Call {
            refuses: &[NotCOrder, BeyondDlpack],
            drops: &[Drops::ReadOnly],
            ..interface(
                "from nvidia.dali.tensors import TensorGPU",
                "TensorGPU(v)",
                Waits::Stream,
            )
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "cvcuda",
        title: "CV-CUDA",
        aliases: &["nvcv"],
        distribution: "cvcuda-cu13",
        distributions: &["cvcuda-cu*"],
        modules: &["nvcv", "cvcuda"],
        version: "da51fc9",
        checked: Source,
        producer: Some(Producer {
            exports: BOTH,
            untold: Some(Unknown),
            ..producer(
                "cd.view(x, producer_stream=s)",
                Silence::Unknown,
                "its dict is of version 2, made when the object is",
            )
        }),
        array: None,
        call: Call {
            advice: "pass `v.on(s.handle)`",
            refuses: &[Empty, NoAxes, BeyondDlpack],
            ignores: "the device: it takes 0 for every array",
            drops: &[Drops::ReadOnly],
            ..interface("import nvcv", "nvcv.as_tensor(v)", Waits::Nobody)
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "cuda.compute",
        title: "cuda.compute",
        aliases: &["cuda.cccl", "cccl"],
        distribution: "cuda-cccl",
        distributions: &[],
        modules: &["cuda.compute"],
        version: "1.2.1",
        checked: Test,
        producer: None,
        array: None,
        call: Call {
            advice: "pass `v.on(s)` of the stream that the call is passed",
            refuses: &[NotContiguous, BeyondNumpy, FieldsBeyondNumpy],
            ignores: "all but address, shape, strides and type",
            drops: &[Drops::ReadOnly],
            own: "algorithm",
            ..interface(
                "import cuda.compute",
                "algorithm(v, out, stream=s)",
                Waits::Nobody,
            )
        },
        more: &[],
        launch: None,
        faults: &[Fault {
            what: "needs the key `strides`, which the interface does not; a view has it",
            reproduction: "`algorithm(x, out, stream=s)` of an `x` whose dict lacks it: `KeyError`",
            report: None,
        }],
    },
    Partner {
        name: "cuda.tile",
        title: "cuTile",
        aliases: &["cutile"],
        distribution: "cuda-tile",
        distributions: &[],
        modules: &["cuda.tile"],
        version: "1.7.0",
        checked: Source,
        producer: None,
        array: None,
        call: Call {
            devices: &[CUDA],
            advice: "pass `v.on(s)` of the launch's stream; hold the view until the kernel is done",
            refuses: &[ReadOnly, SubByte, Lanes],
            own: "kernel",
            ..call(
                "import cuda.tile as ct",
                "ct.launch(s, grid, kernel, (v,))",
                Reads::Dlpack,
                Waits::Nobody,
            )
        },
        more: &[],
        launch: None,
        faults: &[Fault {
            what: "calls the deleter of a tensor before it launches the kernel that reads it; a view keeps the memory",
            reproduction: "`ct.launch(s, grid, kernel, (x,))` of an `x` whose memory its tensor alone keeps",
            report: Some("https://github.com/NVIDIA/cutile-python/issues/88"),
        }],
    },
    Partner {
        name: "cutlass.cute",
        title: "CuTe DSL",
        aliases: &["cutlass", "cute"],
        distribution: "nvidia-cutlass-dsl",
        distributions: &[
            "nvidia-cutlass-dsl-libs-core",
            "nvidia-cutlass-dsl-libs-base",
            "nvidia-cutlass-dsl-libs-cu*",
        ],
        modules: &["cutlass"],
        version: "4.8.1",
        checked: Test,
        producer: None,
        array: None,
        call: Call {
            advice: "pass `v.on(s)` of the launch's stream",
            refuses: &[ReadOnly, Padded],
            ..call(
                "from cutlass.cute.runtime import from_dlpack",
                "from_dlpack(v)",
                Reads::Dlpack,
                Waits::Nobody,
            )
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "kvikio",
        title: "KvikIO",
        aliases: &[],
        distribution: "kvikio-cu13",
        distributions: &["kvikio-cu*", "libkvikio-cu*"],
        modules: &["kvikio"],
        version: "26.10.0",
        checked: Test,
        producer: None,
        array: None,
        call: Call {
            advice: "pass `v.synchronize()`",
            refuses: &[NotContiguous, BeyondNumpy],
            ..interface("import kvikio", "file.write(v)", Waits::Nobody)
        },
        more: &[of_host("import kvikio", "file.write(v)")],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "ucxx",
        title: "UCXX",
        aliases: &[],
        distribution: "ucxx-cu13",
        distributions: &["ucxx-cu*", "libucxx-cu*"],
        modules: &["ucxx"],
        version: "0.52.0",
        checked: Test,
        producer: None,
        array: None,
        call: Call {
            advice: "pass `v.synchronize()`",
            refuses: &[NotContiguous, BeyondNumpy],
            ..interface("import ucxx", "endpoint.send(v)", Waits::Nobody)
        },
        more: &[of_host("import ucxx", "endpoint.send(v)")],
        launch: None,
        faults: &[Fault {
            what: "sends as many bytes from the address, whatever the strides; `explain` says that it refuses them",
            reproduction: "`endpoint.send(np.arange(10.0)[::2])`: 0 to 4 arrive",
            report: None,
        }],
    },
    Partner {
        name: "nixl",
        title: "NIXL",
        aliases: &[],
        distribution: "nixl-cu12",
        distributions: &["nixl", "nixl-cu*"],
        modules: &["nixl"],
        version: "1.5.1",
        checked: Test,
        producer: None,
        array: None,
        call: Call {
            devices: HOST_OR_CUDA,
            advice: "`agent.register_memory(found.rows, found.memory)` takes what it returns; keep that until the transfers are done",
            refuses: &[BitGaps],
            drops: &[Drops::ReadOnly, Drops::Layout],
            ..call(
                "import cai_dlpack.nixl",
                "cai_dlpack.nixl.rows(v)",
                Reads::View,
                Waits::Host,
            )
        },
        more: &[],
        launch: None,
        faults: &[],
    },
    Partner {
        name: "cupynumeric",
        title: "cuPyNumeric",
        aliases: &[],
        distribution: "nvidia-cupynumeric",
        distributions: &["nvidia-cupynumeric-cu*"],
        modules: &["cupynumeric"],
        version: "cabe364, Legate e57d8ea",
        checked: Source,
        producer: Some(Producer {
            devices: &[CPU],
            refuses: "the read-only flag; memory of a device, as `__dlpack__` fetches the array to the host",
            ..producer(
                "cd.view(a)",
                Silence::Ready,
                "`_thunk/deferred.py`, 306: `get_physical_store()` blocks, and names no target, for which Legate takes memory of the host",
            )
        }),
        array: None,
        call: Call {
            devices: HOST_OR_CUDA,
            by_build: &[CUDA, CUDA_MANAGED],
            refuses: &[
                NotContiguous,
                AxesAbove(6),
                DType("float8"),
                DType("complex32"),
                SubByte,
                Lanes,
            ],
            ignores: "that it is read-only, in the array's own flag; Legate is told",
            ..call(
                "import cupynumeric",
                "cupynumeric.from_dlpack(v)",
                Reads::Dlpack,
                Waits::LegacyDefault,
            )
        },
        more: &[],
        launch: None,
        faults: &[
            Fault {
                what: "exports float16 as bfloat16, and reads bfloat16 as float16: other numbers",
                reproduction: "`to_dlpack_type` and `dl_tensor_type` of Legate (`dlpack/common.cc`, 129, and `from_dlpack.cc`, 90)",
                report: None,
            },
            Fault {
                what: "ends the process for a type whose code is newer than DLPack 1.1, such as bcomplex32",
                reproduction: "the end of `dl_tensor_type`: `LEGATE_ABORT`",
                report: None,
            },
        ],
    },
];
