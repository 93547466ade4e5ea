"""The state of a run on disk, so that an interrupted run goes on where it stopped.

One file per round, complete or not there at all, with its SHA-256 in front; the last two are kept.
It holds what the server holds: nothing in it is private beyond what the clients sent noised.
"""

import dataclasses
import hashlib
import io
import logging
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rdpcfl_tff import storage
from rdpcfl_tff.algorithms.base import State
from rdpcfl_tff.privacy.accounting import Done

_LOG = logging.getLogger(__name__)

WAY_OUT = "mend that, then give the same command with this --output_dir to go on"
_KEPT = 2
_DIGEST_BYTES = 32


class Saved(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        state: The server's, without its clustering: that is computed again from the first updates.
        done: What each client has done with its records so far.
    """

    state: State
    done: tuple[Done, ...]


def save(directory: pathlib.Path, state: State, done: Sequence[Done]) -> None:
    """Writes a checkpoint, and removes those that are no longer needed."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        round_number=state.round_number,
        stage=state.stage,
        models=state.models,
        assignment=state.assignment,
        done=[dataclasses.astuple(client) for client in done],
    )
    content = buffer.getvalue()
    path = directory / f"checkpoint_{state.round_number:06d}.npz"
    with storage.explained(directory, WAY_OUT):
        storage.write_atomically(path, [hashlib.sha256(content).digest(), content])
        for old in _saved(directory)[:-_KEPT]:
            old.unlink()


def load(directory: pathlib.Path) -> Saved | None:
    """The newest checkpoint that is whole; None if there is none."""
    for path in reversed(_saved(directory)):
        content = path.read_bytes()
        digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() == digest:
            return _decode(content)
        _LOG.warning("%s is damaged: going back to the checkpoint before it", path)
    return None


def _saved(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(directory.glob("checkpoint_*.npz"))


def _decode(content: bytes) -> Saved:
    with np.load(io.BytesIO(content), allow_pickle=False) as saved:
        state = State(
            round_number=int(saved["round_number"]),
            stage=str(saved["stage"]),
            models=saved["models"],
            assignment=tuple(int(model) for model in saved["assignment"]),
        )
        done = tuple(
            Done(bool(first), int(later), int(selections))
            for first, later, selections in saved["done"]
        )
        return Saved(state, done)
