"""The published files of a data set in a folder of the user's (`--data_dir`).

Data of the paper's experiments. A file that is there but damaged or wrong is refused by name:
the user pointed at it, so quietly taking the data from elsewhere would hide the fault.
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rdpcfl_tff.data.dataset import Arrays, BadData, PublishedSet
from rdpcfl_tff.data.formats import decode_cifar_batch, decode_idx

# In the order of `Arrays`; each with or without .gz.
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_ARCHIVE = "cifar-10-python.tar.gz"
# SHA-256 of each batch's decoded images followed by its labels: they tell which file is wrong.
_CIFAR_BATCHES = {
    "data_batch_1": "8350d89ba6404c270d263d84bf037e74b0158eecac79f27405efcf23445a6997",
    "data_batch_2": "28d2d506ff2e052a3c902ac74931514d4c22d54b3f23622088bee441ab096cf0",
    "data_batch_3": "e56532de152c7a77fc2a722499682f2699ce5177bbfac2ed2e415096184fa1d9",
    "data_batch_4": "bb996a8ffff861dd5cca88c397fdfb884f0c482c5588bd32cea3dc7b648709bb",
    "data_batch_5": "efb6334c7c1f88ac69032959408d9eeccb983002e83119b66de7309d3d2c7915",
    "test_batch": "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa",
}


def find(published: PublishedSet, data_dir: Path) -> Path | None:
    """Where the set's files are: `data_dir/<name>/`, `data_dir/`, or nowhere (None)."""
    for folder in (data_dir / published.name, data_dir):
        if published.name == "cifar10":
            for path in (folder / CIFAR_FOLDER, folder / CIFAR_ARCHIVE):
                if path.exists():
                    return path
        elif any(_idx_path(folder, file) for file in IDX_FILES):
            return folder
    return None


def read(published: PublishedSet, path: Path) -> Arrays:
    """Reads and checks the files that `find` found."""
    if published.name != "cifar10":
        return read_idx_folder(published, path)
    if path.is_dir():
        return _read_cifar(lambda batch: _read_file(path / batch, 2**26), origin=path)
    try:
        with tarfile.open(path) as archive:
            return _read_cifar(lambda batch: _read_member(archive, batch, path), origin=path)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise BadData(f"{path}: truncated or damaged archive ({error})") from None


def read_idx_folder(published: PublishedSet, folder: Path) -> Arrays:
    """The four IDX files of a folder, each with or without .gz, checked."""
    arrays, origins = [], []
    for file, shape in zip(IDX_FILES, published.shapes(), strict=True):
        path = _idx_path(folder, file)
        if path is None:
            raise BadData(f"{folder / file}: missing, with or without .gz")
        # The files are grey images without a channel axis.
        file_shape = shape[:3]
        # One byte more than right is enough to notice a file that is too long.
        raw = _read_file(path, limit=int(np.prod(file_shape)) + 4 * (len(file_shape) + 1) + 1)
        arrays.append(decode_idx(raw, file_shape, str(path)).reshape(shape))
        origins.append(str(path))
    result = Arrays(*arrays)
    published.check(result, (origins[0], origins[1], origins[2], origins[3]))
    return result


def _idx_path(folder: Path, file: str) -> Path | None:
    candidates = (folder / f"{file}.gz", folder / file)
    return next((path for path in candidates if path.is_file()), None)


def _read_file(path: Path, limit: int) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read(limit)
    except FileNotFoundError:
        raise BadData(f"{path}: missing") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path}: truncated, damaged or unreadable ({error})") from None


def _read_member(archive: tarfile.TarFile, batch: str, origin: Path) -> bytes:
    try:
        member = archive.extractfile(f"{CIFAR_FOLDER}/{batch}")
    except KeyError:
        member = None
    if member is None:
        raise BadData(f"{origin}: has no {CIFAR_FOLDER}/{batch}")
    return member.read()


def _read_cifar(read_batch: Callable[[str], bytes], origin: Path) -> Arrays:
    images, labels = [], []
    for batch, digest in _CIFAR_BATCHES.items():
        batch_images, batch_labels = decode_cifar_batch(read_batch(batch), f"{origin}/{batch}")
        if hashlib.sha256(batch_images.tobytes() + batch_labels.tobytes()).hexdigest() != digest:
            raise BadData(f"{origin}/{batch}: wrong contents, not the published batch of cifar10")
        images.append(batch_images)
        labels.append(batch_labels)
    return Arrays(np.concatenate(images[:5]), np.concatenate(labels[:5]), images[5], labels[5])
