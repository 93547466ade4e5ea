"""The operations a model is made of, as pure functions of their parameters and inputs.

Keras layers are taken apart into these (see `functional.py`), because per-example clipping has one
simple rule for each operation with a parameter: dense and convolution kernels, scales, biases.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from rdpcfl_tff.errors import UserError

# Up to this many channels, convolving with a one-hot kernel is the fastest way to copy patches.
FEW_CHANNELS = 4


@dataclasses.dataclass(frozen=True)
class Dense:
    """Multiplies the last axis by a matrix."""

    def __call__(self, kernel: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """The product, without bias."""
        return tf.linalg.matmul(inputs, kernel)

    def patches(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """What the kernel is multiplied by at each position: one [examples, positions, K]."""
        positions = inputs.shape[1:-1].num_elements()
        return [tf.reshape(inputs, [-1, positions, inputs.shape[-1]])]

    def full_kernel(self, kernel: tf.Tensor) -> tf.Tensor:
        """A [K, outputs] gradient as the whole kernel's."""
        return kernel


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A 2-D convolution, channels last, without bias, of images of a fixed size.

    Some taps of a kernel may never meet the image: a 3x3 kernel on a 1x1 image is its centre tap.
    The others, `rows` and `columns` of the kernel, are live, and only they are worked with;
    `paddings` are the zeros that they need around the image.
    """

    kernel_shape: tuple[int, int, int, int]
    strides: tuple[int, int]
    rows: slice
    columns: slice
    paddings: tuple[tuple[int, int], tuple[int, int]]
    output_size: tuple[int, int]

    @classmethod
    def of(
        cls,
        kernel_shape: Sequence[int],
        strides: Sequence[int],
        padding: str,
        image_size: Sequence[int],
    ) -> "Convolution":
        """The operation for a Keras layer's settings (padding: same or valid)."""
        rows, row_padding, height = _live_taps(kernel_shape[0], strides[0], padding, image_size[0])
        columns, column_padding, width = _live_taps(
            kernel_shape[1], strides[1], padding, image_size[1]
        )
        return cls(
            kernel_shape=tuple(kernel_shape),  # type: ignore[arg-type]
            strides=tuple(strides),  # type: ignore[arg-type]
            rows=rows,
            columns=columns,
            paddings=(row_padding, column_padding),
            output_size=(height, width),
        )

    @property
    def live_shape(self) -> tuple[int, int, int, int]:
        """The shape of the kernel's live part."""
        return (
            self.rows.stop - self.rows.start,
            self.columns.stop - self.columns.start,
            *self.kernel_shape[2:],
        )

    @property
    def positions(self) -> int:
        """T, the number of output positions."""
        return self.output_size[0] * self.output_size[1]

    @property
    def patch_size(self) -> int:
        """K, the number of inputs to one output position."""
        height, width, channels, _ = self.live_shape
        return height * width * channels

    def __call__(self, kernel: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """The convolved images."""
        live = tf.slice(kernel, [self.rows.start, self.columns.start, 0, 0], self.live_shape)
        if self.positions > 1:
            return self._convolve(inputs, live)
        # The kernel lies on the image in one way only, which makes this a matrix product.
        outputs = tf.linalg.matmul(
            tf.reshape(self._framed(inputs), [-1, self.patch_size]),
            tf.reshape(live, [self.patch_size, live.shape[3]]),
        )
        return tf.reshape(outputs, [-1, 1, 1, live.shape[3]])

    def patches(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """What the kernel is multiplied by at each position (im2col), in parts.

        Joined along their last axis the parts are [examples, T, K]. There is one for each row of
        the kernel where that saves a copy.
        """
        height, width, channels, _ = self.live_shape
        if self.positions > 1 and channels > FEW_CHANNELS:
            row_span, column_span = (
                (size - 1) * stride + 1
                for size, stride in zip(self.output_size, self.strides, strict=True)
            )
            framed = self._framed(inputs)
            shifted = [
                framed[:, :, column : column + column_span : self.strides[1]]
                for column in range(width)
            ]
            kernel_row = tf.concat(shifted, axis=-1)
            parts = [kernel_row[:, row : row + row_span : self.strides[0]] for row in range(height)]
        elif self.positions > 1:
            one_hot = tf.eye(self.patch_size)
            parts = [
                self._convolve(
                    inputs, tf.reshape(one_hot, [height, width, channels, self.patch_size])
                )
            ]
        else:
            parts = [self._framed(inputs)]
        return [
            tf.reshape(part, [-1, self.positions, self.patch_size // len(parts)]) for part in parts
        ]

    def full_kernel(self, kernel: tf.Tensor) -> tf.Tensor:
        """A [K, outputs] gradient as the whole kernel's: zero where the kernel meets nothing."""
        rows, columns = self.kernel_shape[:2]
        return tf.pad(
            tf.reshape(kernel, self.live_shape),
            [
                [self.rows.start, rows - self.rows.stop],
                [self.columns.start, columns - self.columns.stop],
                [0, 0],
                [0, 0],
            ],
        )

    def _convolve(self, inputs: tf.Tensor, live_kernel: tf.Tensor) -> tf.Tensor:
        # TensorFlow's "explicit" padding fails inside tf.vectorized_map.
        if self._is_same_padding(inputs.shape[1:3]):
            return tf.nn.conv2d(inputs, live_kernel, self.strides, "SAME")
        return tf.nn.conv2d(self._framed(inputs), live_kernel, self.strides, "VALID")

    def _is_same_padding(self, image_size: Sequence[int]) -> bool:
        same = Convolution.of(self.live_shape, self.strides, "same", image_size)
        return same.paddings == self.paddings and same.output_size == self.output_size

    def _framed(self, inputs: tf.Tensor) -> tf.Tensor:
        """The images, padded, and without the rows and columns that the kernel never reaches."""
        if any(max(pair) > 0 for pair in self.paddings):
            inputs = tf.pad(inputs, [[0, 0], *self.paddings, [0, 0]])
        height, width = (
            (size - 1) * stride + taps
            for size, stride, taps in zip(
                self.output_size, self.strides, self.live_shape[:2], strict=True
            )
        )
        return inputs[:, :height, :width]


def convolution_of(layer: tf.keras.layers.Conv2D, input_shape: Sequence[int]) -> Convolution | None:
    """The convolution that a Keras layer does, or None if it is one of another kind."""
    if (
        None in input_shape[1:]
        or layer.groups > 1
        or max(layer.dilation_rate) > 1
        or layer.data_format != "channels_last"
    ):
        return None
    return Convolution.of(layer.kernel.shape, layer.strides, layer.padding, input_shape[1:3])


def _live_taps(
    taps: int, stride: int, padding: str, size: int
) -> tuple[slice, tuple[int, int], int]:
    """Along one axis: the taps that meet the image, the padding they need, the output size."""
    if padding == "same":
        outputs = -(-size // stride)
        before = max((outputs - 1) * stride + taps - size, 0) // 2
    else:
        outputs = (size - taps) // stride + 1
        before = 0
    live = [
        tap
        for tap in range(taps)
        if any(0 <= output * stride + tap - before < size for output in range(outputs))
    ]
    first, last = min(live), max(live)
    after = (outputs - 1) * stride + last + 1 - before - size
    return slice(first, last + 1), (before - first, max(after, 0)), outputs


@dataclasses.dataclass(frozen=True)
class Scale:
    """Multiplies each channel by its own factor."""

    def __call__(self, scale: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """The scaled inputs."""
        return inputs * scale


@dataclasses.dataclass(frozen=True)
class Bias:
    """Adds to each channel its own number."""

    def __call__(self, bias: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """The shifted inputs."""
        return tf.nn.bias_add(inputs, bias)


@dataclasses.dataclass(frozen=True)
class Standardise:
    """Mean 0 and variance 1 in each group of channels of each example: GroupNorm's first half."""

    groups: int
    epsilon: float

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """The standardised inputs."""
        channels = inputs.shape[-1]
        grouped = tf.reshape(
            inputs,
            [-1, inputs.shape[1:-1].num_elements(), self.groups, channels // self.groups],
        )
        mean, variance = tf.nn.moments(grouped, axes=[1, 3], keepdims=True)
        standardised = (grouped - mean) * tf.math.rsqrt(variance + self.epsilon)
        return tf.reshape(standardised, [-1, *inputs.shape[1:]])


def standardise_of(
    layer: tf.keras.layers.GroupNormalization, input_shape: Sequence[int]
) -> Standardise | None:
    """The first half of a Keras layer, or None if its channels are not last."""
    if None in input_shape[1:] or layer.axis not in (-1, len(input_shape) - 1):
        return None
    return Standardise(layer.groups, layer.epsilon)


@dataclasses.dataclass(frozen=True)
class Activation:
    """A function without parameters."""

    function: Callable[[tf.Tensor], tf.Tensor]

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """The activated inputs."""
        return self.function(inputs)


@dataclasses.dataclass(frozen=True)
class KerasCall:
    """Any other Keras layer, called as it was called when the model was built.

    Its weights, if it has some, are handed in as tensors: they take the place of the layer's
    variables during the call.
    """

    layer: Any
    node: Any

    def __call__(self, *values: tf.Tensor) -> Any:
        """The layer's output; `values` are its weights, then its inputs."""
        weights = self.layer.trainable_weights
        tensors, inputs = values[: len(weights)], values[len(weights) :]
        value_of = {id(t): v for t, v in zip(self.node.keras_inputs, inputs, strict=True)}

        def filled_in(argument: Any) -> Any:
            if id(argument) in value_of:
                return value_of[id(argument)]
            # Keras keeps constants as eager tensors, which other graphs cannot take in.
            return argument.numpy() if tf.is_tensor(argument) else argument

        arguments, keywords = tf.nest.map_structure(
            filled_in, (self.node.call_args, self.node.call_kwargs)
        )
        with _variables_replaced(self.layer, weights, tensors):
            return self.layer.call(*arguments, **keywords)


@contextlib.contextmanager
def _variables_replaced(
    layer: tf.keras.layers.Layer, variables: Sequence[tf.Variable], tensors: Sequence[tf.Tensor]
) -> Iterator[None]:
    """For a while, tensors stand where the layer, or a layer inside it, keeps its variables."""
    tensor_for = {id(v): t for v, t in zip(variables, tensors, strict=True)}
    replaced = []
    for module in (layer, *layer.submodules):
        attributes = vars(module)
        for name, value in list(attributes.items()):
            if id(value) in tensor_for:
                replaced.append((attributes, name, value))
                attributes[name] = tensor_for[id(value)]
    try:
        if {id(variable) for _, _, variable in replaced} < set(tensor_for):
            raise UserError(
                f"layer '{layer.name}' ({type(layer).__name__}) must keep each weight as an "
                "attribute of its own to be used here"
            )
        yield
    finally:
        for attributes, name, value in replaced:
            attributes[name] = value
