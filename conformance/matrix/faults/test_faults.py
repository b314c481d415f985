"""TensorFlow and JAX: what ends the process, or says nothing, without the bridge, is a refusal through it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.tests.interpreter.process import environment

TENSORFLOW = """
import gc, sys
import cai_dlpack as cd
import numpy as np
import tensorflow as tf

def rule_of(call):
    try:
        call()
    except BufferError as error:
        return error.rule
    raise AssertionError("accepted")
"""

STRINGS = """
variant = tf.raw_ops.EmptyTensorList(element_shape=[1], max_num_elements=1, element_dtype=tf.float32)
for door in (cd.view, cd.from_dlpack, cd.to_dlpack):
    assert rule_of(lambda: door(tf.constant("x"))) == "producer-dtype"
    assert rule_of(lambda: door(variant)) == "producer-dtype"
for dtype in (tf.float32, tf.bfloat16, tf.float16, tf.bool, tf.int8, tf.uint64, tf.complex64):
    assert cd.view(tf.zeros((2, 3), dtype)).shape == (2, 3), dtype
"""

# TensorFlow without a GPU refuses the device, calls the deleter and leaves the capsule's name.
LEFT_ALONE = """
class Array:
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3}

for max_version in (None, (1, 0)):
    for _ in range(100):
        array = Array()
        before = sys.getrefcount(array)
        capsule = cd.to_dlpack(array, device_id=0, stream=-1, max_version=max_version)
        try:
            tf.experimental.dlpack.from_dlpack(capsule)
        except tf.errors.InvalidArgumentError as error:
            assert max_version or "unknown device" in str(error), error
        else:
            raise AssertionError("TensorFlow takes memory of a device that it does not have")
        del capsule
        assert sys.getrefcount(array) == before
assert cd.stats()["live"] == 0
"""


@pytest.mark.parametrize("program", [STRINGS, LEFT_ALONE], ids=["strings", "left-alone"])
def test_tensorflow(program: str) -> None:
    """In a process of its own, which the fault would end."""
    program = TENSORFLOW + program + "\nprint('whole')"
    quiet = environment(TF_CPP_MIN_LOG_LEVEL="3")
    answer = subprocess.run(
        [sys.executable, "-c", program], env=quiet, capture_output=True, text=True, timeout=300, check=False
    )
    assert (answer.returncode, answer.stdout) == (0, "whole\n"), answer.stderr[-3000:]


JAX = """
import cai_dlpack as cd
import jax
import jax.numpy as jnp

def rule_of(call):
    try:
        call()
    except (TypeError, BufferError) as error:
        return error.rule, error.__cause__ is not None
    raise AssertionError("accepted")

doors = (cd.view, cd.from_dlpack, cd.to_dlpack)
deleted = jnp.zeros(3)
deleted.delete()
for door in doors:
    assert rule_of(lambda: door(deleted)) == ("array-deleted", True)

def traced(x):
    for door in (*doors, cd.from_cai):
        assert rule_of(lambda: door(x)) == ("array-traced", False)
    return x.sum()

jax.jit(traced)(jnp.zeros(3))
jax.grad(traced)(jnp.zeros(3))
jax.vmap(traced)(jnp.zeros((2, 3)))
print("whole")
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="JAX 0.10.2 needs Python 3.11")
def test_jax() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", JAX], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert (answer.returncode, answer.stdout) == (0, "whole\n"), answer.stderr[-3000:]
