"""One federated round, as a TFF iterative process: local training, then an average per cluster.

Implements the client and server steps at the end of the paper's Algorithm 1; which client trains
which model is the algorithm's choice, and arrives as data. Only what `local_update` returns leaves
a client.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from rdpcfl_tff.federated import client_data
from rdpcfl_tff.privacy import clipping, dp_sgd

# Updates are summed in fixed point, in units of 2^-40, because integers have the same sum in any
# order: one machine or several, the result has the same bits. Rounding an update to these units
# changes it less than float32 does unless it is below 2^-16, and then by less than a millionth of
# the noise.
_UNITS = 2.0**40
# Nobody whose training works moves a weight so far in one round; and 2^15 such updates still fit.
LARGEST_UPDATE = 2.0**8

# What the server sends to one client for one round; all of it public.
TASK_TYPE = tff.StructWithPythonType(
    [
        ("silo", tff.TensorType(np.str_)),
        ("model", tff.TensorType(np.int32)),
        ("records", tff.TensorType(np.int32)),
        ("batch_size", tff.TensorType(np.int32)),
        ("steps", tff.TensorType(np.int32)),
        ("learning_rate", tff.TensorType(np.float32)),
        ("clip_norm", tff.TensorType(np.float32)),
        ("noise_multiplier", tff.TensorType(np.float32)),
        ("seed", tff.TensorType(np.int32, [2])),
        ("weight", tff.TensorType(np.float32)),
    ],
    collections.OrderedDict,
)


def client_task(
    silo: str, model: int, local_task: dp_sgd.LocalTask, weight: float = 1.0
) -> collections.OrderedDict:
    """The task of one client: its silo's folder, the row of the model it trains, and how.

    The weight, from 0 to 1, is its update's in the average.
    """
    return collections.OrderedDict(silo=silo, model=model, **local_task._asdict(), weight=weight)


def build_round(
    num_models: int,
    records: client_data.RecordFormat,
    engine: dp_sgd.Engine,
    private: bool,
) -> tff.templates.IterativeProcess:
    """The iterative process whose state is the cluster models, float32 [M, p].

    `initialize()` gives all of them the model's initial parameters, the paper's theta_init.
    `next(models, tasks)` gives the models after one round, and how many clients each is the work
    of. Model m has moved by the average of the updates of the clients that trained it, with the
    weights of their tasks; a model that nobody trained stays as it is. A client whose training
    diverged (an update that is not finite, or huge) is left out.
    """
    shape = (num_models, engine.model.num_parameters)
    models_type = tff.TensorType(np.float32, shape)
    local_update = _local_update(models_type, records, engine, private)

    @tff.tensorflow.computation
    def initialise():
        return tf.broadcast_to(tf.constant(engine.model.initial_parameters), shape)

    @tff.tensorflow.computation
    def nothing_yet():
        # A tensor per model: a client's update then makes one of them anew, and not all.
        return collections.OrderedDict(
            update_sums=[tf.zeros(shape[1], tf.int64) for _ in range(num_models)],
            weights=tf.zeros(num_models, tf.int64),
            clients=tf.zeros(num_models, tf.int32),
        )

    sums_type = nothing_yet.type_signature.result

    @tff.tensorflow.computation(sums_type, local_update.type_signature.result)
    def add_client(sums, report):
        row = tf.reshape(report["model"], (1, 1))
        # Never true of a NaN.
        sound = tf.reduce_all(tf.abs(report["update"]) <= LARGEST_UPDATE)
        update = tf.where(sound, report["update"], tf.zeros_like(report["update"]))
        weight = tf.where(sound, tf.cast(report["weight"], tf.float64), 0)
        in_units = _in_units(tf.cast(update, tf.float64) * weight)
        update_sums = [
            tf.cond(
                tf.equal(report["model"], model),
                lambda so_far=so_far: so_far + in_units,
                lambda so_far=so_far: so_far,
            )
            for model, so_far in enumerate(sums["update_sums"])
        ]
        return collections.OrderedDict(
            update_sums=update_sums,
            weights=tf.tensor_scatter_nd_add(sums["weights"], row, _in_units(weight)[tf.newaxis]),
            clients=tf.tensor_scatter_nd_add(
                sums["clients"], row, tf.cast(sound, tf.int32)[tf.newaxis]
            ),
        )

    @tff.tensorflow.computation(sums_type, sums_type)
    def add_sums(one, other):
        return tf.nest.map_structure(tf.add, one, other)

    @tff.tensorflow.computation(models_type, sums_type)
    def move(models, sums):
        weights = tf.cast(sums["weights"], tf.float64)[:, tf.newaxis]
        updates = tf.cast(tf.stack(list(sums["update_sums"])), tf.float64)
        averages = tf.math.divide_no_nan(updates, weights)
        return models + tf.cast(averages, tf.float32), sums["clients"]

    @tff.tensorflow.computation(sums_type)
    def unchanged(sums):
        return sums

    @tff.federated_computation
    def initialise_server():
        return tff.federated_eval(initialise, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(models_type, tff.SERVER), tff.FederatedType(TASK_TYPE, tff.CLIENTS)
    )
    def next_round(models, tasks):
        reports = tff.federated_map(local_update, (tff.federated_broadcast(models), tasks))
        sums = tff.federated_aggregate(reports, nothing_yet(), add_client, add_sums, unchanged)
        moved = tff.federated_map(move, (models, sums))
        return moved[0], moved[1]

    return tff.templates.IterativeProcess(initialise_server, next_round)


def build_updates(
    records: client_data.RecordFormat, engine: dp_sgd.Engine, private: bool
) -> tff.Computation:
    """A computation `(one model [1, p], tasks) -> every client's update`: R-DPCFL's first round."""
    models_type = tff.TensorType(np.float32, (1, engine.model.num_parameters))
    local_update = _local_update(models_type, records, engine, private)

    @tff.tensorflow.computation(local_update.type_signature.result)
    def update_of(report):
        return report["update"]

    @tff.federated_computation(
        tff.FederatedType(models_type, tff.SERVER), tff.FederatedType(TASK_TYPE, tff.CLIENTS)
    )
    def updates(models, tasks):
        reports = tff.federated_map(local_update, (tff.federated_broadcast(models), tasks))
        return tff.federated_map(update_of, reports)

    return updates


def personal_task(model: np.ndarray, task: collections.OrderedDict) -> collections.OrderedDict:
    """The task of a client that keeps a model of its own; the task's row of models is not used."""
    return collections.OrderedDict(own_model=model, task=task)


def build_personal_round(
    records: client_data.RecordFormat, engine: dp_sgd.Engine, private: bool, clip_pull: bool = False
) -> tff.Computation:
    """A computation `(anchor and pull, personal tasks) -> every client's own model afterwards`.

    The pull to the anchor joins after the noise, or is clipped together with each gradient.
    The models go from client to client's next round through the caller: MR-MTL's server sees them
    noised, and `Local`'s stay at the client.
    """
    vector_type = tff.TensorType(np.float32, (engine.model.num_parameters,))
    server_type = tff.StructWithPythonType(
        [("anchor", vector_type), ("pull", tff.TensorType(np.float32))], collections.OrderedDict
    )
    personal_type = tff.StructWithPythonType(
        [("own_model", vector_type), ("task", TASK_TYPE)], collections.OrderedDict
    )

    @tff.tensorflow.computation(server_type, personal_type)
    def train_own_model(server, personal):
        task = personal["task"]
        images, labels = records.read(task["silo"], "train")

        def pull(theta):
            return server["pull"] * (theta - server["anchor"])

        # Without privacy nothing is clipped, and both ways are one.
        inside = clip_pull and private
        update = dp_sgd.train(
            clipping.VectorizedMapEngine(engine.model, pull) if inside else engine,
            personal["own_model"],
            images,
            labels,
            _local_task(task),
            records.scale,
            private,
            pull=None if inside else pull,
        )
        return personal["own_model"] + update

    @tff.federated_computation(
        tff.FederatedType(server_type, tff.SERVER), tff.FederatedType(personal_type, tff.CLIENTS)
    )
    def personal_round(server, personals):
        return tff.federated_map(train_own_model, (tff.federated_broadcast(server), personals))

    return personal_round


def _local_task(task: collections.OrderedDict) -> dp_sgd.LocalTask:
    return dp_sgd.LocalTask(**{name: task[name] for name in dp_sgd.LocalTask._fields})


def _local_update(
    models_type: tff.TensorType,
    records: client_data.RecordFormat,
    engine: dp_sgd.Engine,
    private: bool,
) -> tff.Computation:
    """The client's side: read the own silo, train the named model, report the (noised) update."""

    @tff.tensorflow.computation(models_type, TASK_TYPE)
    def local_update(models, task):
        images, labels = records.read(task["silo"], "train")
        update = dp_sgd.train(
            engine,
            tf.gather(models, task["model"]),
            images,
            labels,
            _local_task(task),
            records.scale,
            private,
        )
        return collections.OrderedDict(model=task["model"], weight=task["weight"], update=update)

    return local_update


def _in_units(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(values * _UNITS), tf.int64)
