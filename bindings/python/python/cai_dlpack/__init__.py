"""Zero-copy bridge between the CUDA Array Interface and DLPack.

``to`` hands an array to a library, which gets an array of its own in the same memory:

>>> import cai_dlpack as cd
>>> cd.to(numba_array, "torch")                     # doctest: +SKIP

``view`` takes any array that speaks one of the two protocols and returns a ``CaiView``, which
speaks both:

>>> numba.cuda.as_cuda_array(cd.view(buffer))       # doctest: +SKIP
>>> tvm_ffi.from_dlpack(cd.view(numba_array))       # doctest: +SKIP

``from_cai`` and ``from_dlpack`` accept one protocol only; ``to_dlpack`` returns a bare capsule.
"""

from . import typing
from ._core import (
    AttributeRefusal,
    BufferRefusal,
    CaiView,
    Consume,
    ConsumeWarning,
    DriverError,
    DType,
    Explanation,
    Handle,
    InterchangeWarning,
    Refusal,
    RuntimeRefusal,
    StreamWarning,
    TypeRefusal,
    ValueRefusal,
    VersionWarning,
    __version__,
    explain,
    from_cai,
    from_dlpack,
    join,
    open,
    policy,
    share,
    split_masked,
    stats,
    to,
    to_dlpack,
    use_stream,
    view,
)

__all__ = [
    "AttributeRefusal",
    "BufferRefusal",
    "CaiView",
    "Consume",
    "ConsumeWarning",
    "DType",
    "DriverError",
    "Explanation",
    "Handle",
    "InterchangeWarning",
    "Refusal",
    "RuntimeRefusal",
    "StreamWarning",
    "TypeRefusal",
    "ValueRefusal",
    "VersionWarning",
    "__version__",
    "explain",
    "from_cai",
    "from_dlpack",
    "join",
    "open",
    "policy",
    "share",
    "split_masked",
    "stats",
    "to",
    "to_dlpack",
    "typing",
    "use_stream",
    "view",
]
