"""The cache of downloaded data sets: one file per set, verified each time it is read.

Not part of the paper. An entry is the set's four uint8 arrays, one after another, no header:
shapes and digests are constants of the code, so a damaged entry cannot pass for a good one.
"""

import os
from pathlib import Path

import numpy as np

from rdpcfl_tff import storage
from rdpcfl_tff.data.dataset import Arrays, BadData, PublishedSet

WAY_OUT = "free space there, or choose another folder with --cache_dir"


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/rdpcfl_tff`, by default below ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rdpcfl_tff"


def entry(published: PublishedSet, folder: Path) -> Path:
    """The file that holds the set in the cache."""
    return folder / f"{published.name}.uint8"


def read(published: PublishedSet, folder: Path) -> Arrays:
    """The set; raises `BadData` if the cache has no copy of it, or a damaged one."""
    path = entry(published, folder)
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise BadData(f"not in the cache ({path}: {error.strerror})") from None
    sizes = [int(np.prod(shape)) for shape in published.shapes()]
    if raw.size != sum(sizes):
        raise BadData(f"{path}: {raw.size} bytes instead of {sum(sizes)}")
    parts = np.split(raw, np.cumsum(sizes)[:-1])
    arrays = Arrays(*(p.reshape(s) for p, s in zip(parts, published.shapes(), strict=True)))
    published.check(arrays, (str(path),) * 4)
    return arrays


def write(published: PublishedSet, folder: Path, arrays: Arrays) -> None:
    """Stores checked arrays; the caller holds the lock of the entry."""
    with storage.explained(folder, WAY_OUT):
        storage.write_atomically(entry(published, folder), arrays)
