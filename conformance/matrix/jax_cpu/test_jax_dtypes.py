"""JAX on the CPU takes a view's dtype for its own, and spells the type of `dtype=`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np
import pytest

from conformance.tests.expectations import oracle

if sys.version_info < (3, 11):
    pytest.skip("not run: JAX needs Python 3.11", allow_module_level=True)

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
jax.config.update("jax_enable_x64", True)

#: The names that `jax.numpy` has for rows of the protocol's table. XLA on the CPU has no float6 and no ints of a bit.
NAMES = [
    name
    for name in [*(row[0] for row in oracle.DTYPES.values()), *oracle.WITHOUT_TYPESTR]
    if hasattr(jnp, name) and not name.startswith("float6") and name not in ("int1", "uint1")
]


def array_of(name: str) -> Any:
    kind = np.dtype(getattr(ml_dtypes, name) if name in oracle.WITHOUT_TYPESTR else name)
    return (np.arange(6).reshape(2, 3) % 2).astype(kind)


@pytest.mark.parametrize("name", NAMES)
def test_a_view_becomes_an_array(name: str) -> None:
    array = array_of(name)
    view = cd.view(array)
    assert jnp.dtype(view.dtype) == jnp.result_type(view) == array.dtype
    for made in (jnp.asarray(view), jnp.array(view), jnp.asarray(view, dtype=view.dtype)):
        assert (made.dtype, made.shape) == (array.dtype, (2, 3))
        assert np.asarray(made).tobytes() == array.tobytes()
    assert jax.ShapeDtypeStruct(view.shape, view.dtype).dtype == array.dtype


@pytest.mark.parametrize("name", NAMES)
def test_its_classes_spell_the_type(name: str) -> None:
    kind = getattr(jnp, name)
    assert cd.DType(kind) == name == cd.DType(jnp.dtype(kind))
    assert cd.view(array_of(name)).dtype == kind
    assert kind == cd.view(array_of(name)).dtype


def test_its_arrays_come_and_go() -> None:
    made = jnp.ones(3, jnp.bfloat16)
    view = cd.view(made)
    assert view.dtype == made.dtype == jnp.bfloat16
    assert (jnp.asarray(view) == made).all()
