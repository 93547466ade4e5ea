"""TF Privacy's mechanism behind our interface, and our layer rules behind TF Privacy's.

`TFPrivacyEngine` clips by TF Privacy's own optimizer: the independent check on the fast engine.
`layer_registry` gives users of TF Privacy's `DPModel` fast clipping for convolutions and GroupNorm.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry as registries
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras_vectorized

from rdpcfl_tff.models import operations as ops
from rdpcfl_tff.models.functional import FunctionalModel, losses
from rdpcfl_tff.privacy.clipping import Batch
from rdpcfl_tff.privacy.per_example import example_gradients


class TFPrivacyEngine:
    """Clipping by the gradient step of TF Privacy's `VectorizedDPKerasSGDOptimizer`.

    The optimizer's own noise is switched off: it is drawn from TensorFlow's global state, which no
    seed controls inside TFF. `dp_sgd.train` adds the noise for all engines. A gradient that
    overflows makes the sum no number, which noise cannot hide: to compare with, not to deploy.
    """

    def __init__(self, model: FunctionalModel):
        self.model = model

    def gradient_sum(self, parameters: tf.Tensor, batch: Batch, clip_norm: tf.Tensor) -> tf.Tensor:
        """See `clipping.Engine`."""
        theta = self.model.unflatten(parameters)
        optimizer = dp_optimizer_keras_vectorized.VectorizedDPKerasSGDOptimizer(
            l2_norm_clip=clip_norm, noise_multiplier=0.0
        )

        def weighted_losses() -> tf.Tensor:
            logits = self.model.logits_from_weights(theta, batch.inputs)
            return batch.weights * losses(logits, batch.labels)

        # Not `minimize`, which would add stateful noise and ask for variables: the gradient step.
        gradients_and_weights = optimizer._compute_gradients(weighted_losses, theta)
        # The optimizer divides by the number of losses.
        count = tf.cast(tf.shape(batch.weights)[0], tf.float32)
        return count * self.model.flatten([gradient for gradient, _ in gradients_and_weights])


def layer_registry() -> registries.LayerRegistry:
    """TF Privacy's default registry, with Conv2D and GroupNormalization added.

    Hand it to `DPKerasModel` (the class `dp_keras_model.make_dp_model_class` makes), which without
    it takes the slow way for every model with one of these layers.
    """
    registry = registries.make_default_layer_registry()
    registry.insert(tf.keras.layers.Conv2D, convolution_layer_computation)
    registry.insert(tf.keras.layers.GroupNormalization, group_normalization_layer_computation)
    return registry


# What TF Privacy asks of a layer: a tensor to differentiate by, the layer's outputs, and a function
# from the tensor's gradient to the squared gradient norm of each example (or microbatch).
_LayerComputation = tuple[tf.Tensor, tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]


def convolution_layer_computation(
    layer: tf.keras.layers.Conv2D,
    input_args: tuple[tf.Tensor, ...],
    input_kwargs: Mapping[str, Any],
    tape: tf.GradientTape,
    num_microbatches: tf.Tensor | None = None,
) -> _LayerComputation:
    """TF Privacy's layer registry function for Conv2D."""
    del input_kwargs  # Conv2D has none.
    (inputs,) = input_args
    convolution = ops.convolution_of(layer, inputs.shape)
    if convolution is None:
        raise NotImplementedError(
            f"layer '{layer.name}': fast clipping is for convolutions of images of a known size, "
            "channels last, without groups and dilation"
        )
    outputs = convolution(layer.kernel, inputs)
    if layer.use_bias:
        outputs = ops.Bias()(layer.bias, outputs)
    tape.watch(outputs)

    def squared_norms(dy: tf.Tensor) -> tf.Tensor:
        norms = _squared_norms(convolution, inputs, dy, num_microbatches)
        if layer.use_bias:
            norms += _squared_norms(ops.Bias(), inputs, dy, num_microbatches)
        return norms

    return outputs, layer.activation(outputs), squared_norms


def group_normalization_layer_computation(
    layer: tf.keras.layers.GroupNormalization,
    input_args: tuple[tf.Tensor, ...],
    input_kwargs: Mapping[str, Any],
    tape: tf.GradientTape,
    num_microbatches: tf.Tensor | None = None,
) -> _LayerComputation:
    """TF Privacy's layer registry function for GroupNormalization."""
    del input_kwargs  # A mask, if there is one, has no effect.
    (inputs,) = input_args
    standardise = ops.standardise_of(layer, inputs.shape)
    if standardise is None:
        raise NotImplementedError(
            f"layer '{layer.name}': fast clipping is for channels last, of images of a known size"
        )
    standardised = standardise(inputs)
    outputs = standardised
    parametrised: list[Any] = []
    if layer.scale:
        outputs = ops.Scale()(layer.gamma, outputs)
        parametrised.append(ops.Scale())
    if layer.center:
        outputs = ops.Bias()(layer.beta, outputs)
        parametrised.append(ops.Bias())
    tape.watch(outputs)

    def squared_norms(dy: tf.Tensor) -> tf.Tensor:
        return tf.add_n(
            [_squared_norms(one, standardised, dy, num_microbatches) for one in parametrised]
        )

    return outputs, outputs, squared_norms


def _squared_norms(
    operation: Any, inputs: tf.Tensor, dy: tf.Tensor, num_microbatches: tf.Tensor | None
) -> tf.Tensor:
    """The squared gradient norm of each example or, if there are microbatches, of each of them."""
    if num_microbatches is None:
        return example_gradients(operation, inputs, dy).squared_norms

    def grouped(values: tf.Tensor) -> tf.Tensor:
        # A microbatch has one gradient, as if it were one example with more positions.
        return tf.reshape(values, [num_microbatches, -1, values.shape[-1]])

    if isinstance(operation, ops.Convolution):
        gradients = [
            tf.linalg.matmul(grouped(dy), grouped(part), transpose_a=True)
            for part in operation.patches(inputs)
        ]
        return tf.add_n([tf.reduce_sum(tf.square(one), axis=[1, 2]) for one in gradients])
    return example_gradients(operation, grouped(inputs), grouped(dy)).squared_norms
