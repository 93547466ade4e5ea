"""How a client reads its own silo: inside its computation, from the folder that the driver names.

Whole arrays of raw bytes are read anew each round: that costs a thousandth of the training, less
than any way of handing data through TFF. The records never leave the client's computation.
"""

import dataclasses
import math
import pathlib

import tensorflow as tf

from rdpcfl_tff.data.store import INPUT_TYPES, SiloStore


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """What every silo has in common, and is public: the shape and the scaling of its inputs.

    Attributes:
        input_shape: Of one image or of one record of features.
        mean: Subtracted from an input, a pixel being divided by 255 before.
        std: What the difference is divided by.
        kind: "images" (uint8) or "features" (float32), as in `SiloStore`.
    """

    input_shape: tuple[int, ...]
    mean: float
    std: float
    kind: str = "images"

    @classmethod
    def of(cls, store: SiloStore) -> "RecordFormat":
        """The format that the store's manifest states."""
        normalisation = store.normalisation
        return cls(store.input_shape, normalisation.mean, normalisation.std, store.kind)

    @property
    def largest(self) -> float:
        """What an input is divided by before anything else."""
        return 255.0 if self.kind == "images" else 1.0

    def write_blank(self, silo: str, split: str, num_records: int) -> None:
        """Makes up a split of black images or zeros with label 0, to measure time with."""
        record_size = math.prod(self.input_shape) * INPUT_TYPES[self.kind].itemsize
        for suffix, size in ((self.kind, num_records * record_size), ("labels", num_records)):
            with open(pathlib.Path(silo, f"{split}.{suffix}"), "wb") as file:
                file.truncate(size)  # zeros that take no space

    def is_whole(self, silo: str, split: str) -> bool:
        """Whether the silo has the split, with an input for every label."""
        inputs = pathlib.Path(silo, f"{split}.{self.kind}")
        labels = pathlib.Path(silo, f"{split}.labels")
        record_size = math.prod(self.input_shape) * INPUT_TYPES[self.kind].itemsize
        try:
            return inputs.stat().st_size == labels.stat().st_size * record_size > 0
        except OSError:
            return False

    def scale(self, inputs: tf.Tensor) -> tf.Tensor:
        """uint8 pixels, or features, to the model's float32 inputs."""
        return (tf.cast(inputs, tf.float32) / self.largest - self.mean) / self.std

    def read(self, silo: tf.Tensor, split: str) -> tuple[tf.Tensor, tf.Tensor]:
        """The inputs (uint8 or float32 [N, ...]) and labels (int32 [N]) of one split."""
        inputs = tf.io.decode_raw(
            tf.io.read_file(silo + f"/{split}.{self.kind}"), INPUT_TYPES[self.kind]
        )
        labels = tf.io.decode_raw(tf.io.read_file(silo + f"/{split}.labels"), tf.uint8)
        return tf.reshape(inputs, (-1, *self.input_shape)), tf.cast(labels, tf.int32)
