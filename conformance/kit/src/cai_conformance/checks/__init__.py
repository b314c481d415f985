"""The checks, by profile. Each stands beside the mutant that it must find."""

from cai_conformance.checks import (
    cai_consumer,
    cai_producer,
    dlpack_consumer,
    dlpack_consumer_streams,
    dlpack_producer,
    ends,
    exchange_consumer,
    exchange_producer,
    pair,
)
from cai_conformance.judge.check import CHECKS

__all__ = [
    "CHECKS",
    "cai_consumer",
    "cai_producer",
    "dlpack_consumer",
    "dlpack_consumer_streams",
    "dlpack_producer",
    "ends",
    "exchange_consumer",
    "exchange_producer",
    "pair",
]
