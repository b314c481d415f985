"""Test GPU array interchange without a GPU.

`python -m cai_conformance simulate -- COMMAND` starts a command on a simulated CUDA driver;
`Sim` controls that driver from inside.
"""

from cai_conformance.library import NotSimulated, is_simulated, library_path
from cai_conformance.log import Call
from cai_conformance.sim import Gate, GilHeld, Sim

__all__ = ["Call", "Gate", "GilHeld", "NotSimulated", "Sim", "is_simulated", "library_path"]
