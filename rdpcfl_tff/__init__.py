"""Differentially private clustered federated learning (R-DPCFL) on TensorFlow Federated.

>>> import rdpcfl_tff
>>> print(rdpcfl_tff.RunConfig(epsilon=4, rounds=20).selections)
2
"""

import importlib
from typing import Any

# Importing TensorFlow takes seconds, so each name is looked up when it is first used.
_HOMES = {
    "Client": "rdpcfl_tff.api",
    "RunConfig": "rdpcfl_tff.config",
    "RunResult": "rdpcfl_tff.api",
    "UserError": "rdpcfl_tff.errors",
    "run": "rdpcfl_tff.api",
}

__all__ = ["Client", "RunConfig", "RunResult", "UserError", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
