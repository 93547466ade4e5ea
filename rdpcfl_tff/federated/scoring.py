"""The cluster models, scored on the clients' records where the records are.

Private selection (the paper's third stage and IFCA) runs here, on the client: only the chosen index
leaves. Exact accuracies are private: a simulation may look at them, and they never decide anything.
"""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from rdpcfl_tff.federated import client_data
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import selection

_EVALUATION_TYPE = tff.StructWithPythonType(
    [("silo", tff.TensorType(np.str_)), ("model", tff.TensorType(np.int32))],
    collections.OrderedDict,
)
_SELECTION_TYPE = tff.StructWithPythonType(
    [
        ("silo", tff.TensorType(np.str_)),
        ("records", tff.TensorType(np.int32)),
        ("epsilon_select", tff.TensorType(np.float64)),
        ("seed", tff.TensorType(np.int32, [2])),
    ],
    collections.OrderedDict,
)

# Images per forward pass: memory does not grow with the silo.
_CHUNK = 512


def evaluation_task(silo: str, model: int) -> collections.OrderedDict:
    """What the server sends to one client for an evaluation; public."""
    return collections.OrderedDict(silo=silo, model=model)


def selection_task(
    silo: str, records: int, epsilon_select: float, seed: tuple[int, int]
) -> collections.OrderedDict:
    """What one client gets for a private selection; `records` is its public N, as accounted."""
    return collections.OrderedDict(
        silo=silo, records=records, epsilon_select=epsilon_select, seed=seed
    )


def build_evaluation(
    num_models: int, model: FunctionalModel, records: client_data.RecordFormat, split: str
) -> tff.Computation:
    """A computation `(models, evaluations) -> each client's accuracy`, for simulations only."""
    models_type = tff.TensorType(np.float32, (num_models, model.num_parameters))

    @tff.tensorflow.computation(models_type, _EVALUATION_TYPE)
    def accuracy_of_own_model(models, evaluation):
        images, labels = records.read(evaluation["silo"], split)
        parameters = tf.gather(models, evaluation["model"])
        return accuracy(model, parameters, images, labels, records.scale)

    return _on_every_client(accuracy_of_own_model)


def build_selection(
    num_models: int, model: FunctionalModel, records: client_data.RecordFormat
) -> tff.Computation:
    """A computation `(models, selections) -> each client's privately chosen model`."""
    models_type = tff.TensorType(np.float32, (num_models, model.num_parameters))

    @tff.tensorflow.computation(models_type, _SELECTION_TYPE)
    def select(models, task):
        images, labels = records.read(task["silo"], "train")
        scores = tf.stack(
            [
                accuracy(model, parameters, images, labels, records.scale)
                for parameters in tf.unstack(models)
            ]
        )
        return selection.select(scores, task["records"], task["epsilon_select"], task["seed"])

    return _on_every_client(select)


def accuracy(
    model: FunctionalModel,
    parameters: tf.Tensor,
    images: tf.Tensor,
    labels: tf.Tensor,
    scale: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """The share of the records, each counted once, that the model classifies correctly: float64."""

    def add_chunk(start: tf.Tensor, correct: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = model.logits(parameters, scale(images[start : start + _CHUNK]))
        predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
        # tf.equal, because == between tensors means identity inside TFF.
        hits = tf.equal(predictions, labels[start : start + _CHUNK])
        return start + _CHUNK, correct + tf.reduce_sum(tf.cast(hits, tf.int32))

    _, correct = tf.while_loop(
        lambda start, _: start < tf.size(labels),
        add_chunk,
        (tf.constant(0), tf.constant(0)),
        parallel_iterations=1,
    )
    return correct / tf.size(labels)


def _on_every_client(computation: tff.Computation) -> tff.Computation:
    """Broadcasts the models, and returns each client's result to the caller."""
    models_type, task_type = computation.type_signature.parameter

    @tff.federated_computation(
        tff.FederatedType(models_type, tff.SERVER), tff.FederatedType(task_type, tff.CLIENTS)
    )
    def on_every_client(models, tasks):
        return tff.federated_map(computation, (tff.federated_broadcast(models), tasks))

    return on_every_client
