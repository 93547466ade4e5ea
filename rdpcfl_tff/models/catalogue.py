"""The models by name, and models of the user's own: a function of theirs, named or handed over.

Nothing here depends on data. Whether a model can be trained at all, `functional.py` decides.
"""

import hashlib
import importlib
from collections.abc import Callable

import tensorflow as tf

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.mlp import mlp
from rdpcfl_tff.models.resnet import resnet18

# From the shape of one input, the number of classes and a seed to a model that gives logits.
ModelFunction = Callable[[tuple[int, ...], int, int], tf.keras.Model]

MODELS: dict[str, Callable[..., tf.keras.Model]] = {"cnn": cnn, "resnet18": resnet18, "mlp": mlp}


def build_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, seed: int
) -> tf.keras.Model:
    """The named Keras model with its initial weights drawn from the seed."""
    function = MODELS.get(name) or _imported(name)
    if name in ("cnn", "resnet18") and len(input_shape) != 3:
        raise UserError(
            f"--model={name} is for images, and a record here has shape {list(input_shape)}: "
            "use --model=mlp, or a model of your own"
        )
    try:
        model = function(input_shape, num_classes, seed)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"--model={name} cannot be built for inputs of shape {list(input_shape)}: {error}"
        ) from error
    if not isinstance(model, tf.keras.Model):
        raise UserError(f"--model={name} gave {type(model).__name__}, and must give a Keras model")
    _check_shapes(name, model, input_shape, num_classes)
    return model


def register(model: tf.keras.Model | ModelFunction) -> str:
    """Gives a model that was handed over a name, under which `build_model` finds it."""
    if isinstance(model, tf.keras.Model):
        content = model.to_json().encode() + b"".join(w.numpy().tobytes() for w in model.weights)
        name = f"keras:{model.name}-{hashlib.sha256(content).hexdigest()[:16]}"
        MODELS[name] = lambda input_shape, num_classes, seed: _copy(model)
    else:
        name = f"{model.__module__}:{model.__qualname__}"
        MODELS[name] = model
    return name


def _copy(model: tf.keras.Model) -> tf.keras.Model:
    copy = tf.keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def _imported(name: str) -> ModelFunction:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise UserError(
            f"--model={name}: {error}; the module must be in this folder or on PYTHONPATH (a model "
            "that was handed over in Python is known in that process only)"
        ) from error
    except AttributeError:
        raise UserError(f"--model={name}: {module} has no function {function!r}") from None


def _check_shapes(
    name: str, model: tf.keras.Model, input_shape: tuple[int, ...], num_classes: int
) -> None:
    expected = (None, *input_shape), (None, num_classes)
    found = tuple(model.input_shape), tuple(model.output_shape)
    if found != expected:
        raise UserError(
            f"--model={name} maps inputs {found[0]} to outputs {found[1]}, and the data needs "
            f"{expected[0]} to {expected[1]}, the logits"
        )
