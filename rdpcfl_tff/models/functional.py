"""A Keras model as a pure function of one flat parameter vector.

The form that federated computations and per-example clipping need: no variables, no state.
Models whose layers mix examples are refused: they have no per-example gradient to clip.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.models import operations as ops

RANDOM_LAYERS = (
    tf.keras.layers.Dropout,
    tf.keras.layers.AlphaDropout,
    tf.keras.layers.GaussianDropout,
    tf.keras.layers.GaussianNoise,
)


class Instruction(NamedTuple):
    """One step of a model: values[output] = operation(*parameters, *values[inputs])."""

    operation: Any
    parameters: tuple[int, ...]
    inputs: tuple[int, ...]
    output: int


class FunctionalModel:
    """A Keras functional model as a function of a float32 vector with all its parameters.

    Attributes:
      num_parameters: the length p of the vector.
      num_live_parameters: how many of them the model's output depends on. The others are taps of
        convolutions that never meet the image: 6.95 of ResNet-18's 11.2 million.
      initial_parameters: the Keras model's weights as one vector, in Keras' order.
      program: the operations in the order in which they run; value 0 is the model's input.
    """

    def __init__(self, model: tf.keras.Model):
        _check_supported(model)
        check_examples_are_independent(model)
        self._shapes = [tuple(weight.shape) for weight in model.trainable_weights]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self.num_parameters = sum(self._sizes)
        self.initial_parameters = np.concatenate(
            [weight.numpy().ravel() for weight in model.trainable_weights]
        )
        self.program = _bias_and_relu_after_max_pooling(_Compiler(model).program)
        self._convolution_of = _convolutions_with_dead_taps(self.program)
        self.num_live_parameters = sum(
            convolution.patch_size * convolution.live_shape[3] if convolution else size
            for size, convolution in zip(self._sizes, self._convolutions(), strict=True)
        )

    @staticmethod
    def flatten(weights: Sequence[tf.Tensor]) -> tf.Tensor:
        """The inverse of `unflatten`."""
        return tf.concat([tf.reshape(weight, [-1]) for weight in weights], axis=0)

    def unflatten(self, parameters: tf.Tensor) -> list[tf.Tensor]:
        """The weights in Keras' order and shapes."""
        starts = np.cumsum([0, *self._sizes])
        # Slices, unlike tf.split, are mostly views of the vector and not copies.
        return [
            tf.reshape(parameters[start : start + size], shape)
            for start, size, shape in zip(starts[:-1], self._sizes, self._shapes, strict=True)
        ]

    def spread(self, live: tf.Tensor) -> tf.Tensor:
        """A vector with a number for each live parameter, with zeros for the others: float32[p]."""
        pieces, start = [], 0
        for size, convolution in zip(self._sizes, self._convolutions(), strict=True):
            if convolution is not None:
                size = convolution.patch_size * convolution.live_shape[3]
            piece = live[start : start + size]
            pieces.append(piece if convolution is None else convolution.full_kernel(piece))
            start += size
        return self.flatten(pieces)

    def _convolutions(self) -> list[ops.Convolution | None]:
        """For each parameter the convolution that leaves some of it unused."""
        return [self._convolution_of.get(index) for index in range(len(self._sizes))]

    def run(
        self, weights: list[tf.Tensor], inputs: tf.Tensor
    ) -> Iterator[tuple[Instruction, tuple[tf.Tensor, ...], tf.Tensor]]:
        """Run the program; after each instruction yield it with its inputs and its output."""
        values = {0: inputs}
        for instruction in self.program:
            arguments = tuple(values[index] for index in instruction.inputs)
            output = instruction.operation(
                *(weights[index] for index in instruction.parameters), *arguments
            )
            values[instruction.output] = output
            yield instruction, arguments, output

    def logits_from_weights(self, weights: list[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
        """The model's outputs for a batch of inputs, from its unflattened parameters."""
        *_, (_, _, logits) = self.run(weights, inputs)
        return logits

    def logits(self, parameters: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """The model's outputs for a batch of inputs, from the parameter vector."""
        return self.logits_from_weights(self.unflatten(parameters), inputs)


def losses(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The cross-entropy of each example."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, tf.int32), logits)


def check_examples_are_independent(model: tf.keras.Model) -> None:
    """Raise UserError if one example's output depends on another example of its batch."""
    _check_no_batch_normalisation(model)
    # Layers of the user's own can mix examples too: see whether a neighbour makes a difference.
    examples = np.random.default_rng(0).normal(size=(3, *model.input_shape[1:]))
    beside_second = model(examples[[0, 1]], training=True)[0]
    beside_third = model(examples[[0, 2]], training=True)[0]
    if not np.allclose(beside_second, beside_third, rtol=1e-4, atol=1e-5):
        raise UserError(
            f"model '{model.name}' gives an example another output when another example is in its "
            "batch: remove the layer that mixes examples (normalise by "
            "tf.keras.layers.GroupNormalization)"
        )


def _check_no_batch_normalisation(model: tf.keras.Model) -> None:
    for layer in model.submodules:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            raise UserError(
                f"layer '{layer.name}' ({type(layer).__name__}) mixes the examples of a batch, so "
                "that no example has a gradient of its own to clip: use "
                "tf.keras.layers.GroupNormalization in its place"
            )


def _check_supported(model: tf.keras.Model) -> None:
    """Raise UserError for what a pure function of trainable weights would silently leave out."""
    if len(model.inputs) != 1 or len(model.outputs) != 1 or None in model.input_shape[1:]:
        raise UserError(
            f"model '{model.name}' must have one input of a fixed shape and one output, the logits"
        )
    _check_no_batch_normalisation(model)  # before its weights that are not trainable
    if model.non_trainable_weights:
        raise UserError(
            f"weight '{model.non_trainable_weights[0].name}' is not trainable: "
            "make all weights of the model trainable"
        )
    if model.losses:
        raise UserError(f"model '{model.name}' has a regulariser, which would have no effect")
    for layer in model.submodules:
        if isinstance(layer, RANDOM_LAYERS) and getattr(layer, "rate", 1) > 0:
            raise UserError(
                f"layer '{layer.name}' ({type(layer).__name__}) draws random numbers that no seed "
                "of the run controls: remove it"
            )


class _Compiler:
    """Takes the layers of a Keras model apart, from its inputs to its output."""

    def __init__(self, model: tf.keras.Model):
        self.program: list[Instruction] = []
        self._parameter = {id(w): index for index, w in enumerate(model.trainable_weights)}
        self._compile(model.outputs[0], {id(model.inputs[0]): 0})

    def _compile(self, tensor: Any, values: dict[int, int]) -> int:
        """Add the operations behind a Keras tensor that are not in `values` yet."""
        if id(tensor) not in values:
            node = tensor.node
            if node.outputs is not tensor:
                raise UserError(f"layer '{node.layer.name}' must have a single output")
            inputs = tuple(self._compile(parent, values) for parent in node.keras_inputs)
            values[id(tensor)] = self._layer(node, inputs)
        return values[id(tensor)]

    def _layer(self, node: Any, inputs: tuple[int, ...]) -> int:
        """Add the operations of one call of a layer; return the number of its value."""
        layer, layers = node.layer, tf.keras.layers
        if isinstance(layer, tf.keras.Model):
            arguments = zip(layer.inputs, inputs, strict=True)
            return self._compile(
                layer.outputs[0], {id(tensor): value for tensor, value in arguments}
            )
        shape = node.keras_inputs[0].shape
        if type(layer) is layers.Dense and None not in shape[1:]:
            value = self._add(ops.Dense(), [layer.kernel], inputs)
            return self._bias_and_activation(layer, value)
        if type(layer) is layers.Conv2D and (convolution := ops.convolution_of(layer, shape)):
            value = self._add(convolution, [layer.kernel], inputs)
            return self._bias_and_activation(layer, value)
        if type(layer) is layers.GroupNormalization and (
            standardise := ops.standardise_of(layer, shape)
        ):
            value = self._add(standardise, [], inputs)
            if layer.scale:
                value = self._add(ops.Scale(), [layer.gamma], (value,))
            if layer.center:
                value = self._add(ops.Bias(), [layer.beta], (value,))
            return value
        if type(layer) is layers.Activation:
            return self._add(ops.Activation(layer.activation), [], inputs)
        return self._add(ops.KerasCall(layer, node), layer.trainable_weights, inputs)

    def _bias_and_activation(self, layer: Any, value: int) -> int:
        if layer.use_bias:
            value = self._add(ops.Bias(), [layer.bias], (value,))
        if layer.activation is not tf.keras.activations.linear:
            value = self._add(ops.Activation(layer.activation), [], (value,))
        return value

    def _add(self, operation: Any, weights: list[tf.Variable], inputs: tuple[int, ...]) -> int:
        parameters = tuple(self._parameter[id(weight)] for weight in weights)
        output = len(self.program) + 1
        self.program.append(Instruction(operation, parameters, inputs, output))
        return output


def _convolutions_with_dead_taps(program: list[Instruction]) -> dict[int, ops.Convolution]:
    """The convolutions of which some taps never meet the image, by the number of their kernel."""
    uses = Counter(index for instruction in program for index in instruction.parameters)
    return {
        instruction.parameters[0]: instruction.operation
        for instruction in program
        if isinstance(instruction.operation, ops.Convolution)
        and instruction.operation.live_shape != instruction.operation.kernel_shape
        and uses[instruction.parameters[0]] == 1
    }


def _bias_and_relu_after_max_pooling(program: list[Instruction]) -> list[Instruction]:
    """Move max-pooling before a bias and a ReLU, which then work on fewer elements.

    Both are increasing functions of each channel, so that the maximum is the same.
    """
    consumers = Counter(index for instruction in program for index in instruction.inputs)
    program = list(program)
    for at in range(2, len(program)):
        bias, relu, pool = program[at - 2 : at + 1]
        if (
            isinstance(bias.operation, ops.Bias)
            and _is_relu(relu.operation)
            and _is_max_pooling(pool.operation)
            and relu.inputs == (bias.output,)
            and pool.inputs == (relu.output,)
            and consumers[bias.output] == consumers[relu.output] == 1
        ):
            program[at - 2 : at + 1] = [
                pool._replace(inputs=bias.inputs, output=bias.output),
                bias._replace(inputs=(bias.output,), output=relu.output),
                relu._replace(inputs=(relu.output,), output=pool.output),
            ]
    return program


def _is_relu(operation: Any) -> bool:
    if isinstance(operation, ops.Activation):
        return operation.function is tf.keras.activations.relu
    return (
        isinstance(operation, ops.KerasCall)
        and type(operation.layer) is tf.keras.layers.ReLU
        and not operation.layer.negative_slope
        and not operation.layer.threshold
    )


def _is_max_pooling(operation: Any) -> bool:
    return (
        isinstance(operation, ops.KerasCall)
        and type(operation.layer) is tf.keras.layers.MaxPooling2D
        and operation.layer.data_format == "channels_last"
    )
