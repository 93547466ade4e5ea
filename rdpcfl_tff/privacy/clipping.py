"""Sums of clipped per-example gradients (DP-SGD's hot path; the paper's Algorithm 1, local update).

Private: every input but the parameters and the clip norm. The result has sensitivity `clip_norm`
to one example and is still to be noised (`dp_sgd.py`).
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

import tensorflow as tf

from rdpcfl_tff.models.functional import FunctionalModel, losses
from rdpcfl_tff.privacy.per_example import RULES, ExampleGradients, example_gradients

_LOG = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Examples: the model's inputs, their labels, and weights.

    Weights are 1, or 0 for an example that only fills up the batch.
    """

    inputs: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


class Engine(Protocol):
    """Sums the gradients of a batch, each of them clipped to `clip_norm` in L2."""

    model: FunctionalModel

    def gradient_sum(self, parameters: tf.Tensor, batch: Batch, clip_norm: tf.Tensor) -> tf.Tensor:
        """The sum over examples of weight * clipped gradient: float32[p].

        An example whose gradient overflows counts as 0.
        """
        ...


class UnclippedEngine:
    """Ordinary gradients for training without privacy: nothing is clipped."""

    def __init__(self, model: FunctionalModel):
        self.model = model

    def gradient_sum(self, parameters: tf.Tensor, batch: Batch, clip_norm: tf.Tensor) -> tf.Tensor:
        """The weighted sum of the gradients; `clip_norm` is not used."""
        del clip_norm
        theta = self.model.unflatten(parameters)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(theta)
            logits = self.model.logits_from_weights(theta, batch.inputs)
            loss = tf.reduce_sum(batch.weights * losses(logits, batch.labels))
        return self.model.flatten(tape.gradient(loss, theta))


class FastEngine:
    """Per-example clipping in one backward pass, by the rules in `per_example.py`."""

    def __init__(self, model: FunctionalModel):
        self.model = model

    def gradient_sum(self, parameters: tf.Tensor, batch: Batch, clip_norm: tf.Tensor) -> tf.Tensor:
        """See `Engine`."""
        parametrised = []
        logits = batch.inputs
        # Watching outputs, not parameters: the backward pass then computes no weight gradient.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for step in self.model.run(self.model.unflatten(parameters), batch.inputs):
                instruction, _, logits = step
                if instruction.parameters:
                    tape.watch(logits)
                    parametrised.append(step)
            loss = tf.reduce_sum(losses(logits, batch.labels))
        output_gradients = tape.gradient(loss, [output for _, _, output in parametrised])

        def example_gradients_without(dropped: tf.Tensor | None) -> dict[int, ExampleGradients]:
            return {
                instruction.parameters[0]: example_gradients(
                    instruction.operation, _blank(arguments[0], dropped), _blank(dy, dropped)
                )
                for (instruction, arguments, _), dy in zip(
                    parametrised, output_gradients, strict=True
                )
            }

        def weighted_sum(gradients: dict[int, ExampleGradients], factors: tf.Tensor) -> tf.Tensor:
            return self.model.flatten(
                [gradients[index].weighted_sum(factors) for index in sorted(gradients)]
            )

        gradients = example_gradients_without(dropped=None)
        squared_norms = tf.add_n([g.squared_norms for g in gradients.values()])
        factors = batch.weights * clip_factors(squared_norms, clip_norm)
        overflown = tf.logical_not(tf.math.is_finite(squared_norms))
        # Zero times infinity is no number: what overflowed must not be there, not even weighted 0.
        return tf.cond(
            tf.reduce_any(overflown),
            lambda: weighted_sum(example_gradients_without(overflown), factors),
            lambda: weighted_sum(gradients, factors),
        )


def _blank(values: tf.Tensor, dropped: tf.Tensor | None) -> tf.Tensor:
    """The values with zeros for the dropped examples."""
    if dropped is None:
        return values
    dropped = tf.reshape(dropped, [-1] + [1] * (values.shape.rank - 1))
    return tf.where(dropped, tf.zeros_like(values), values)


class VectorizedMapEngine:
    """One gradient per example by `tf.vectorized_map`: any model, several times slower.

    A `pull`, the gradient of a regulariser, is added to each example's gradient before clipping.
    """

    def __init__(
        self, model: FunctionalModel, pull: Callable[[tf.Tensor], tf.Tensor] = tf.zeros_like
    ):
        self.model = model
        self._pull = pull

    def gradient_sum(self, parameters: tf.Tensor, batch: Batch, clip_norm: tf.Tensor) -> tf.Tensor:
        """See `Engine`."""
        theta = self.model.unflatten(parameters)
        pull = self._pull(parameters)

        def clipped_gradient(example: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            image, label = example
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(theta)
                logits = self.model.logits_from_weights(theta, image[tf.newaxis])
                loss = tf.reduce_sum(losses(logits, label[tf.newaxis]))
            gradient = self.model.flatten(tape.gradient(loss, theta)) + pull
            squared_norm = tf.reduce_sum(gradient**2)
            clipped = gradient * clip_factors(squared_norm, clip_norm)
            return tf.where(tf.math.is_finite(squared_norm), clipped, tf.zeros_like(clipped))

        gradients = tf.vectorized_map(clipped_gradient, (batch.inputs, batch.labels))
        return tf.linalg.matvec(gradients, batch.weights, transpose_a=True)


def clip_factors(squared_norms: tf.Tensor, clip_norm: tf.Tensor) -> tf.Tensor:
    """min(1, clip_norm / norm) for each example; 0 for one whose gradient has overflowed.

    Such an example would make the whole sum infinite or no number, which no noise can hide.
    """
    factors = clip_norm / tf.maximum(tf.sqrt(squared_norms), clip_norm)
    return tf.where(tf.math.is_finite(squared_norms), factors, tf.zeros_like(factors))


def fast_engine(model: FunctionalModel) -> Engine:
    """`FastEngine`, or `VectorizedMapEngine` for a model with a layer that has no fast rule."""
    uses = Counter(index for instruction in model.program for index in instruction.parameters)
    for instruction in model.program:
        reason = None
        if instruction.parameters and type(instruction.operation) not in RULES:
            reason = f"layer '{instruction.operation.layer.name}' has no fast rule"
        elif any(uses[index] > 1 for index in instruction.parameters):
            reason = "a layer is used twice"
        if reason:
            _LOG.warning("%s: clipping by tf.vectorized_map, several times slower", reason)
            return VectorizedMapEngine(model)
    return FastEngine(model)
