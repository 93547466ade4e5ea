"""Applies an exported model: `python -m experiments.predict --model=PATH --data=FILE`.

One line per record: its number, the most probable class, its probability. With labels in the file
it also says how many are right.
"""

import csv
import io
import pathlib

import numpy as np
from absl import flags

from experiments import command_line
from rdpcfl_tff import storage
from rdpcfl_tff.data import client_files
from rdpcfl_tff.errors import UserError

_MODEL = flags.DEFINE_string("model", None, "The folder of one exported model.")
_DATA = flags.DEFINE_string(
    "data", None, "An .npz with the records x (and perhaps their labels y), or a folder of images."
)
_OUTPUT = flags.DEFINE_string("output", None, "Where the CSV table goes (default: printed).")


def main(arguments: list[str]) -> None:
    """Predicts, and writes the table."""
    command_line.no_arguments(arguments)
    for flag in (_MODEL, _DATA):
        if not flag.value or not pathlib.Path(flag.value).exists():
            raise UserError(f"--{flag.name}={flag.value or ''}: no such file or folder")
    import tensorflow as tf

    try:
        model = tf.keras.models.load_model(_MODEL.value)
    except (OSError, ValueError) as error:
        raise UserError(f"--model={_MODEL.value}: no exported model ({error})") from None
    shape, dtype = model.input_shape[1:], model.inputs[0].dtype.as_numpy_dtype
    records, labels = _read(pathlib.Path(_DATA.value), shape)
    if records.shape[1:] != shape or (dtype == np.uint8 and records.dtype != np.uint8):
        raise UserError(
            f"--data={_DATA.value}: x is {records.dtype} of shape {records.shape}, and the model "
            f"takes {np.dtype(dtype).name} of shape [N, {', '.join(map(str, shape))}]"
        )
    probabilities = model.predict(records.astype(dtype), verbose=0)
    classes = probabilities.argmax(axis=1)
    _write(classes, probabilities.max(axis=1))
    if labels is not None:
        right = int(np.count_nonzero(classes == labels))
        print(f"{right} of {len(labels)} right: accuracy {right / len(labels):.4f}")


def _read(path: pathlib.Path, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in client_files.IMAGE_SUFFIXES
        )
        if not files:
            raise UserError(f"--data={path}: has no PNG or JPEG image")
        return np.stack([client_files.read_image(file, str(file), shape) for file in files]), None
    arrays = client_files.load_npz(path)
    if "x" not in arrays:
        raise UserError(f"--data={path}: has no array x, but {', '.join(arrays)}")
    return arrays["x"], arrays.get("y")


def _write(classes: np.ndarray, probabilities: np.ndarray) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["record", "class", "probability"])
    for number, (label, probability) in enumerate(zip(classes, probabilities, strict=True)):
        table.writerow([number, label, f"{probability:.4f}"])
    if _OUTPUT.value:
        path = pathlib.Path(_OUTPUT.value)
        with storage.explained(path.parent, "choose another --output"):
            storage.write_atomically(path, [text.getvalue().encode()])
    else:
        print(text.getvalue(), end="")


if __name__ == "__main__":
    command_line.run(main)
