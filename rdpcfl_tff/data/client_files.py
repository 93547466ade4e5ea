"""One client's records in a file of its own: an npz, a folder of images, or a TFRecord.

Not part of the paper. All that is read here is private to the client. Files are not trusted: no
pickle is opened, and what cannot be read is refused by name.
"""

import io
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rdpcfl_tff.data.own_store import UNSPLIT, Description
from rdpcfl_tff.data.store import SPLITS, Records
from rdpcfl_tff.errors import UserError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_IMAGE_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff")


def is_client(path: Path) -> bool:
    """Whether a client's records may be in this file or folder."""
    return not path.name.startswith(".") and (
        path.is_dir() or path.suffix in (".npz", ".tfrecord", ".tfrecords")
    )


def read(path: Path, description: Description) -> Records:
    """The client's records, still to be checked against the description."""
    if path.is_dir():
        return {UNSPLIT: _read_image_folder(path, description)}
    if path.suffix == ".npz":
        return read_npz(path)
    return {UNSPLIT: _read_tfrecord(path, description)}


def read_npz(path: Path) -> Records:
    """The arrays x and y, or x_train, y_train and so on for all three splits."""
    arrays = load_npz(path)
    if {"x", "y"} <= set(arrays):
        return {UNSPLIT: (arrays["x"], arrays["y"])}
    named = [f"{array}_{split}" for split in SPLITS for array in "xy"]
    missing = [name for name in named if name not in arrays]
    if missing:
        raise UserError(
            f"{path}: has the arrays {', '.join(arrays) or '(none)'}, and must have x and y, or "
            f"all of {', '.join(named)}"
        )
    return {split: (arrays[f"x_{split}"], arrays[f"y_{split}"]) for split in SPLITS}


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file, by name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None
    except (zlib.error, pickle.UnpicklingError) as error:
        raise _unreadable(path, error) from None


def read_image(file: Path | io.BytesIO, origin: str, shape: tuple[int, ...]) -> np.ndarray:
    """One image of this shape; colours become grey, or grey colours, as the shape asks."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert(_MODES[shape[2]]), np.uint8)
    except KeyError:
        raise UserError(
            f"{origin}: an image file has 1, 3 or 4 channels, and the shape in the manifest is "
            f"{list(shape)}"
        ) from None
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise UserError(f"{origin}: no image that can be read ({error})") from None
    if pixels.shape[:2] != shape[:2]:
        height, width = pixels.shape[:2]
        raise UserError(
            f"{origin}: is {height} x {width} pixels, and the shape in the manifest is "
            f"{list(shape)}: resize the image"
        )
    return pixels.reshape(shape)


def _read_image_folder(path: Path, description: Description) -> tuple[np.ndarray, np.ndarray]:
    """The images of `path`/CLASS/*.png; a class is its name in the manifest, or its number."""
    if description.kind != "images":
        raise UserError(
            f"{path}: is a folder of images, and the manifest has a feature_shape: give an "
            "image_shape there, or move the folder away"
        )
    classes = description.class_names or tuple(map(str, range(description.num_classes)))
    images, labels = [], []
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        if folder.name not in classes:
            raise UserError(
                f"{folder}: is no class; the classes are {', '.join(classes)} (name others in the "
                'manifest, as in "classes": ["cat", "dog"])'
            )
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() in IMAGE_SUFFIXES:
                images.append(read_image(file, str(file), description.shape))
                labels.append(classes.index(folder.name))
    if not images:
        raise UserError(f"{path}: has no PNG or JPEG image in a folder named by its class")
    return np.stack(images), np.array(labels)


def _read_tfrecord(path: Path, description: Description) -> tuple[np.ndarray, np.ndarray]:
    """The features x and y of every tf.train.Example."""
    records = [_decode_example(example, path, description) for example in _examples(path)]
    if not records:
        raise UserError(f"{path}: has no record")
    inputs, labels = zip(*records, strict=True)
    return np.stack(inputs), np.array(labels)


def _examples(path: Path) -> Iterator[Any]:
    import tensorflow as tf  # takes seconds, and the other kinds of files do not need it

    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            yield tf.train.Example.FromString(record)
    except (tf.errors.OpError, ValueError) as error:
        raise _unreadable(path, error) from None
    except Exception as error:
        if type(error).__name__ != "DecodeError":  # protobuf's, whose module has moved about
            raise
        raise _unreadable(path, error) from None


def _decode_example(example: Any, path: Path, description: Description) -> tuple[np.ndarray, int]:
    features = example.features.feature
    kind = features["x"].WhichOneof("kind") if "x" in features else None
    labels = features["y"].int64_list.value if "y" in features else ()
    if kind is None or len(labels) != 1:
        raise UserError(
            f"{path}: every record needs a feature x (bytes or numbers) and a feature y (one "
            f"whole number); this one has {', '.join(sorted(features)) or 'none'}"
        )
    values = getattr(features["x"], kind).value
    if kind != "bytes_list":
        if len(values) != np.prod(description.shape):
            raise UserError(f"{path}: x has {len(values)} numbers, not {list(description.shape)}")
        return np.array(values).reshape(description.shape), labels[0]
    (content,) = values if len(values) == 1 else (b"",)
    if content.startswith(_IMAGE_BEGINNINGS):
        return read_image(io.BytesIO(content), str(path), description.shape), labels[0]
    if description.kind != "images" or len(content) != np.prod(description.shape):
        raise UserError(
            f"{path}: x has {len(content)} bytes, which are neither a PNG or JPEG image nor "
            f"the pixels of an image of shape {list(description.shape)}"
        )
    return np.frombuffer(content, np.uint8).reshape(description.shape), labels[0]


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read ({error}): replace the file, or move it away")
