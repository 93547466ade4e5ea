"""Decoders of the published file formats: IDX (MNIST, Fashion-MNIST) and CIFAR-10 batches.

Data of the paper's experiments, as their authors published it.
Files are not trusted: sizes are checked, and a pickle may hold a dict and an array only.
"""

import io
import pickle
import struct

import numpy as np

from rdpcfl_tff.data.dataset import BadData

_IDX_UINT8 = 0x08
CIFAR_BATCH_SIZE = 10_000


def decode_idx(raw: bytes, shape: tuple[int, ...], origin: str) -> np.ndarray:
    """The uint8 array of an IDX file that must have exactly `shape`."""
    header_size = 4 + 4 * len(shape)
    if len(raw) < header_size or raw[:4] != bytes([0, 0, _IDX_UINT8, len(shape)]):
        raise BadData(f"{origin}: not an IDX file of {len(shape)}-dimensional uint8 data")
    found = struct.unpack(f">{len(shape)}I", raw[4:header_size])
    if found != shape:
        raise BadData(f"{origin}: the IDX header says shape {found}, expected {shape}")
    size = int(np.prod(shape))
    if len(raw) != header_size + size:
        fault = "truncated" if len(raw) < header_size + size else "too long"
        raise BadData(f"{origin}: {fault}, {len(raw)} bytes instead of {header_size + size}")
    return np.frombuffer(raw, np.uint8, offset=header_size).reshape(shape)


class _BatchUnpickler(pickle.Unpickler):
    """Knows only the three names that the pickle of a NumPy array needs."""

    _ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    )

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def decode_cifar_batch(raw: bytes, origin: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [10000, 32, 32, 3] and labels [10000] of one published "python version" batch."""
    try:
        batch = _BatchUnpickler(io.BytesIO(raw), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"])
        labels = np.asarray(batch[b"labels"], np.uint8)
    except Exception as error:  # a damaged pickle can fail in any way
        raise BadData(f"{origin}: not a CIFAR-10 python batch, or a damaged one: {error}") from None
    if pixels.dtype != np.uint8 or pixels.shape != (CIFAR_BATCH_SIZE, 3 * 32 * 32):
        raise BadData(f"{origin}: data of shape {pixels.shape} and type {pixels.dtype}")
    if labels.shape != (CIFAR_BATCH_SIZE,):
        raise BadData(f"{origin}: labels of shape {labels.shape}")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels
