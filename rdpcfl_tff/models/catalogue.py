"""The models by name, and which one the paper uses for which images."""

import tensorflow as tf

from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.resnet import resnet18

MODELS = {"cnn": cnn, "resnet18": resnet18}


def build_model(
    name: str, image_shape: tuple[int, int, int], num_classes: int, seed: int
) -> tf.keras.Model:
    """The named Keras model with its initial weights drawn from the seed."""
    return MODELS[name](image_shape, num_classes, seed)
