"""Zero-copy bridge between the CUDA Array Interface and DLPack.

``view`` takes any array that speaks one of the two protocols and answers a ``CaiView``, which
speaks both:

>>> import cai_dlpack as cd
>>> numba.cuda.as_cuda_array(cd.view(buffer))       # doctest: +SKIP
>>> tvm_ffi.from_dlpack(cd.view(numba_array))       # doctest: +SKIP

``from_cai`` and ``from_dlpack`` accept one protocol only; ``to_dlpack`` answers a bare capsule.
"""

from importlib.metadata import version as _version

from ._core import CaiView, DriverError, from_cai, from_dlpack, stats, to_dlpack, view

__all__ = ["CaiView", "DriverError", "from_cai", "from_dlpack", "stats", "to_dlpack", "view"]

__version__ = _version("cai-dlpack")
