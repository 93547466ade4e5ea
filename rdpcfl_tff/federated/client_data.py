"""How a client reads its own silo: inside its computation, from the folder that the driver names.

Whole arrays of raw bytes are read anew each round: that costs a thousandth of the training, less
than any way of handing data through TFF. The records never leave the client's computation.
"""

import dataclasses
import math
import pathlib

import tensorflow as tf

from rdpcfl_tff.data.silos import SiloStore


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """What every silo has in common, and is public: the shape and the scaling of its images."""

    image_shape: tuple[int, int, int]
    mean: float
    std: float

    @classmethod
    def of(cls, store: SiloStore) -> "RecordFormat":
        """The format that the store's manifest states."""
        return cls(store.image_shape, store.normalisation.mean, store.normalisation.std)

    def write_blank(self, silo: str, split: str, num_records: int) -> None:
        """Makes up a split of black images with label 0, to measure time with."""
        images = bytes(num_records * math.prod(self.image_shape))
        pathlib.Path(silo, f"{split}.images").write_bytes(images)
        pathlib.Path(silo, f"{split}.labels").write_bytes(bytes(num_records))

    def scale(self, images: tf.Tensor) -> tf.Tensor:
        """uint8 pixels to the model's float32 inputs."""
        return (tf.cast(images, tf.float32) / 255.0 - self.mean) / self.std

    def read(self, silo: tf.Tensor, split: str) -> tuple[tf.Tensor, tf.Tensor]:
        """The images (uint8 [N, H, W, C]) and labels (int32 [N]) of one split of the silo."""
        images = tf.io.decode_raw(tf.io.read_file(silo + f"/{split}.images"), tf.uint8)
        labels = tf.io.decode_raw(tf.io.read_file(silo + f"/{split}.labels"), tf.uint8)
        return tf.reshape(images, (-1, *self.image_shape)), tf.cast(labels, tf.int32)
