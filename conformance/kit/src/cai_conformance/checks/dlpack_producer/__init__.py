"""Checks of producers of DLPack by the Python protocol: the older tensor, and versions 1.0 to 1.3."""

# In the order in which they are run: a check names those before it that it needs.
from cai_conformance.checks.dlpack_producer import methods  # isort: skip
from cai_conformance.checks.dlpack_producer import flags  # isort: skip
from cai_conformance.checks.dlpack_producer import tensor  # isort: skip
from cai_conformance.checks.dlpack_producer import copies  # isort: skip
from cai_conformance.checks.dlpack_producer import streams  # isort: skip
from cai_conformance.checks.dlpack_producer import lifetime  # isort: skip
from cai_conformance.checks.dlpack_producer import exceptions  # isort: skip

__all__ = ["copies", "exceptions", "flags", "lifetime", "methods", "streams", "tensor"]
