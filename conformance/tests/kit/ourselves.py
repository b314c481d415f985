"""Our own producers, as the kit's command names them: `conformance.tests.kit.ourselves:on_a_device`."""

from __future__ import annotations

from typing import Any

import cai_dlpack as cd
from cai_conformance.reference.producers import CaiArray, DlpackArray


def on_a_device(array: Any) -> cd.CaiView:
    """A view of device memory, by the CUDA Array Interface."""
    return cd.view(CaiArray(array))


def on_the_host(array: Any) -> cd.CaiView:
    """A view of host memory, by DLPack."""
    return cd.view(DlpackArray(array))


def copied(array: Any) -> cd.CaiView:
    """A copy in host memory."""
    view = cd.from_dlpack(DlpackArray(array), copy=True)
    assert isinstance(view, cd.CaiView)
    return view
