"""Where every random number of a run comes from: one key, and a stream of its own for each use.

The paper does not speak of it, but noise that can be guessed protects nothing.
The key is private: whoever has it can compute the noise and take it off what a client sent.
"""

import enum
import hashlib
import hmac
import os
import stat
import struct

from rdpcfl_tff.errors import UserError

_KEY_BYTES = 32


class Purpose(enum.Enum):
    """What a stream of random numbers is for."""

    INITIAL_MODEL = "initial model"
    SAMPLING_AND_NOISE = "local training"
    SELECTION = "selection"
    ASSIGNMENT = "assignment draw"
    DROPOUT = "dropout"


def run_key(seed: int) -> bytes:
    """Return the key of a reproducible run: same seed, same key."""
    return hashlib.sha256(f"rdpcfl_tff run {seed}".encode()).digest()


def os_key() -> bytes:
    """Return a new key from the operating system, for noise that nobody can repeat."""
    return os.urandom(_KEY_BYTES)


def stream_seed(
    key: bytes, purpose: Purpose, *, round: int = 0, client: int = 0
) -> tuple[int, int]:
    """Return the stateless TensorFlow seed (two int32) of one use in one round at one client.

    Steps inside the use are folded in on the client (tf.random.experimental.stateless_fold_in).
    A resumed run gets the streams that the uninterrupted run would have had.
    """
    use = f"{purpose.value}/{round}/{client}".encode()
    first, second = struct.unpack(">ii", hmac.digest(key, use, "sha256")[:8])
    return first, second


def save_key(path: str | os.PathLike, key: bytes) -> None:
    """Write a key to a new file that only its owner can read, from its first instant on."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UserError(
            f"noise key {os.fspath(path)} exists already: resume that run, or choose a new folder"
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(descriptor)


def load_key(path: str | os.PathLike) -> bytes:
    """Read a key back; refuse one that others may have read, or that is not whole."""
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        key = file.read()
    if mode & ~0o600:
        raise UserError(
            f"noise key {os.fspath(path)} has mode {mode:04o}: others may have read it, and with "
            "it the noise can be undone; start a new run (or, if nobody did, chmod 600 the file)"
        )
    if len(key) != _KEY_BYTES:
        raise UserError(
            f"noise key {os.fspath(path)} has {len(key)} bytes, not {_KEY_BYTES}: "
            "it is damaged, and the run cannot be resumed; start a new run"
        )
    return key
