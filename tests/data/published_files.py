"""Writes data sets in the formats in which they are published."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np

from rdpcfl_tff.data.dataset import Arrays
from rdpcfl_tff.data.folder import IDX_FILES


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx_folder(folder: Path, arrays: Arrays, compress: bool = True) -> None:
    """Writes the four files the way they are published (grey images, no channel axis)."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in zip(IDX_FILES, arrays, strict=True):
        raw = idx_bytes(array[..., 0] if array.ndim == 4 else array)
        if compress:
            (folder / f"{file}.gz").write_bytes(gzip.compress(raw, 1))
        else:
            (folder / file).write_bytes(raw)


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote str: the published batches were made by Python 2."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def write_cifar_batch(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)
    batch = {b"batch_label": b"a batch", b"labels": labels.tolist(), b"data": pixels}
    with open(path, "wb") as file:
        Python2Pickler(file, protocol=2).dump(batch)
