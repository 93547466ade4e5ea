"""Writing to disk so that an interruption or a full disk leaves nothing half-written.

Not part of the paper: the cache of data sets, the silo store and the results folder share it. It
moves bytes and looks into none of them, so nothing here is private.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from rdpcfl_tff.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def explained(folder: Path, way_out: str) -> Iterator[None]:
    """Turns the errors of writing below `folder` into a `UserError` that ends in `way_out`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(f"no space left to write in {folder}: {way_out}") from error
        raise UserError(f"cannot write in {folder} ({error.strerror}): {way_out}") from error


@contextlib.contextmanager
def locked(path: Path, way_out: str) -> Iterator[None]:
    """Lets one process at a time make `path`; the system frees the lock when the process ends.

    The empty lock file stays: removing it would let two processes lock two different files.
    """
    with explained(path.parent, way_out):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_name(f".{path.name}.lock"), "w")  # noqa: SIM115 - closed below
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def partial(path: Path) -> Path:
    """The name under which `path` is made before it is renamed; only the lock's holder uses it."""
    return path.with_name(f"{path.name}.partial")


def write_file(path: Path, parts: Iterable[np.ndarray | bytes]) -> None:
    """Writes the bytes of `parts` (arrays in C order, without a header) one after another."""
    with open(path, "wb") as file:
        for part in parts:
            file.write(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, parts: Iterable[np.ndarray | bytes]) -> None:
    """Writes `path` so that it appears complete or not at all."""
    try:
        write_file(partial(path), parts)
        os.replace(partial(path), path)
    except BaseException:
        partial(path).unlink(missing_ok=True)
        raise
