"""Per-example gradients of each operation with a parameter, without forming them where possible.

From an operation's inputs and its outputs' gradients dy come, for every example, the squared norm
of the parameter's gradient and, once clip factors are known, the weighted sum of the gradients.
All of it is private: it belongs to single examples.

Notation: T output positions, K inputs to each of them, D outputs; the kernel is a K x D matrix,
P = [T, K] are an example's inputs by position (im2col) and its gradient is G = P^T dy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from rdpcfl_tff.models import operations as ops

# From this many positions on, it is faster to form G than to work around it ...
FORMED_FROM_POSITIONS = 64
# ... unless G is so many times larger than the T x T products that it would fill the memory.
FORMED_UP_TO_SIZE = 16


class ExampleGradients(NamedTuple):
    """The gradients of one parameter, one for each example of a batch.

    Attributes:
      squared_norms: float32[examples].
      weighted_sum: maps weights float32[examples] to the weighted sum of the gradients.
    """

    squared_norms: tf.Tensor
    weighted_sum: Callable[[tf.Tensor], tf.Tensor]


def example_gradients(
    operation: Any, inputs: tf.Tensor, output_gradients: tf.Tensor
) -> ExampleGradients:
    """The gradients of an operation's parameter; the operation's type must be in `RULES`."""
    return RULES[type(operation)](operation, inputs, output_gradients)


def _kernel(
    operation: ops.Dense | ops.Convolution, inputs: tf.Tensor, output_gradients: tf.Tensor
) -> ExampleGradients:
    patches = operation.patches(inputs)
    positions = patches[0].shape[1]
    dy = tf.reshape(output_gradients, [-1, positions, output_gradients.shape[-1]])
    gradient_size = sum(part.shape[-1] for part in patches) * dy.shape[-1]
    if positions >= FORMED_FROM_POSITIONS and gradient_size <= FORMED_UP_TO_SIZE * positions**2:
        gradients = _formed_products(patches, dy)
    elif positions > 1:
        gradients = _ghost(patches, dy)
    else:
        gradients = _outer_product(patches, dy)
    return gradients._replace(
        weighted_sum=lambda weights: operation.full_kernel(gradients.weighted_sum(weights))
    )


def _scale(
    operation: ops.Scale, inputs: tf.Tensor, output_gradients: tf.Tensor
) -> ExampleGradients:
    del operation
    return _formed(_sum_over_positions(inputs * output_gradients))


def _bias(operation: ops.Bias, inputs: tf.Tensor, output_gradients: tf.Tensor) -> ExampleGradients:
    del operation, inputs
    return _formed(_sum_over_positions(output_gradients))


RULES: dict[type, Callable[..., ExampleGradients]] = {
    ops.Dense: _kernel,
    ops.Convolution: _kernel,
    ops.Scale: _scale,
    ops.Bias: _bias,
}


def _formed(gradients: tf.Tensor) -> ExampleGradients:
    """Every example's gradient is there: [examples, ...]."""
    shape = gradients.shape[1:]
    rows = tf.reshape(gradients, [-1, shape.num_elements()])
    return ExampleGradients(
        squared_norms=_squared_norms(rows),
        weighted_sum=lambda weights: tf.reshape(tf.linalg.matmul(weights[tf.newaxis], rows), shape),
    )


def _formed_products(patches: list[tf.Tensor], dy: tf.Tensor) -> ExampleGradients:
    # dy^T P, the transposed gradient, is the faster product of the two.
    parts = [_formed(tf.linalg.matmul(dy, part, transpose_a=True)) for part in patches]
    return ExampleGradients(
        squared_norms=tf.add_n([part.squared_norms for part in parts]),
        weighted_sum=lambda weights: tf.transpose(
            tf.concat([part.weighted_sum(weights) for part in parts], axis=1)
        ),
    )


def _ghost(patches: list[tf.Tensor], dy: tf.Tensor) -> ExampleGradients:
    """|P^T dy|^2 = <P P^T, dy dy^T>: for few positions cheaper than forming G."""
    patch_products = tf.add_n([tf.linalg.matmul(part, part, transpose_b=True) for part in patches])
    dy_products = tf.linalg.matmul(dy, dy, transpose_b=True)
    return ExampleGradients(
        squared_norms=tf.reduce_sum(patch_products * dy_products, axis=[1, 2]),
        weighted_sum=lambda weights: _weighted_products(patches, dy, weights),
    )


def _outer_product(patches: list[tf.Tensor], dy: tf.Tensor) -> ExampleGradients:
    """With one position, G is an outer product and its norm a product of norms."""
    patch_norms = tf.add_n([_squared_norms(tf.squeeze(part, 1)) for part in patches])
    return ExampleGradients(
        squared_norms=patch_norms * _squared_norms(tf.squeeze(dy, 1)),
        weighted_sum=lambda weights: _weighted_products(patches, dy, weights),
    )


def _weighted_products(patches: list[tf.Tensor], dy: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The sum over examples and positions of weight * P^T dy, one matrix product per part."""
    weighted = tf.reshape(dy * weights[:, tf.newaxis, tf.newaxis], [-1, dy.shape[-1]])
    return tf.concat(
        [
            tf.linalg.matmul(tf.reshape(part, [-1, part.shape[-1]]), weighted, transpose_a=True)
            for part in patches
        ],
        axis=0,
    )


def _squared_norms(rows: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(rows), axis=1)


def _sum_over_positions(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(values, axis=list(range(1, values.shape.rank - 1)))
