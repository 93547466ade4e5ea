"""The contenders of the speed benchmark that run on TensorFlow: ours, the baselines, TF Privacy.

Ours is the product's own `dp_sgd.train`, outside and inside of TFF. TF Privacy is used as its
documentation shows it, in a `tf.function`.
"""

import contextlib
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np
import psutil
import tensorflow as tf
from tensorflow_privacy.privacy.keras_models import dp_keras_model
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras, dp_optimizer_keras_vectorized

from experiments.benchmarks import contender
from experiments.benchmarks.contender import Contender, Cost, Factory, Job, serve
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.models.catalogue import MODELS
from rdpcfl_tff.models.functional import FunctionalModel, losses
from rdpcfl_tff.privacy import clipping, dp_sgd, tf_privacy

# Records of a client for each record of its batch: MNIST's 8,000 to 32.
POISSON_RECORDS = 250


def keras_model(job: Job) -> tf.keras.Model:
    """The job's model, with the job's weights."""
    model = MODELS[job.model](_image_shape(job))
    model.set_weights(list(job.weights.values()))
    return model


def _local_task(
    job: Job, records: int, steps: int, noise_multiplier: float, learning_rate: float
) -> dp_sgd.LocalTask:
    return dp_sgd.LocalTask(
        records=records,
        batch_size=len(job.labels),
        steps=steps,
        learning_rate=learning_rate,
        clip_norm=job.clip_norm,
        noise_multiplier=noise_multiplier,
        seed=(1, 2),
    )


class Train(Contender):
    """`dp_sgd.train` with one of the engines."""

    def __init__(
        self,
        job: Job,
        noise_multiplier: float,
        learning_rate: float,
        engine: Callable[[FunctionalModel], dp_sgd.Engine] = clipping.fast_engine,
        private: bool = True,
        records_per_batch: int = 1,
    ):
        model = FunctionalModel(keras_model(job))
        images = tf.constant(np.tile(job.pixels, (records_per_batch, 1, 1, 1)))
        labels = tf.constant(np.tile(job.labels, records_per_batch))
        task = _local_task(job, len(labels), 0, noise_multiplier, learning_rate)
        task = dp_sgd.LocalTask(*(tf.constant(number) for number in task))

        @tf.function
        def update(parameters: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, steps: tf.Tensor):
            return dp_sgd.train(
                engine(model),
                parameters,
                images,
                labels,
                task._replace(steps=steps),
                _record_format(job).scale,
                private,
            )

        self._initial = tf.constant(model.initial_parameters)
        self._trained = self._initial
        self._update = lambda steps: update(self._initial, images, labels, steps)

    def run(self, steps: int) -> None:
        """See `Contender`."""
        self._trained = self._initial + self._update(tf.constant(steps))

    def parameters(self) -> np.ndarray:
        """See `Contender`."""
        return self._trained.numpy()


class InsideTff(Contender):
    """The same inside TFF's client computation: as many clients as there are cores, at once."""

    def __init__(
        self, job: Job, noise_multiplier: float, learning_rate: float, private: bool = True
    ):
        # Nobody else here needs TFF, which takes seconds to import.
        from rdpcfl_tff.federated import rounds, runtime

        engine = clipping.fast_engine(FunctionalModel(keras_model(job)))
        self._updates = rounds.build_updates(_record_format(job), engine, private)
        self._initial = engine.model.initial_parameters
        self._trained = self._initial
        clients = int(os.environ["BENCH_CLIENTS"])
        self._open = contextlib.ExitStack()
        silo = self._open.enter_context(tempfile.TemporaryDirectory(prefix="rdpcfl_tff-"))
        pathlib.Path(silo, "train.images").write_bytes(job.pixels.tobytes())
        pathlib.Path(silo, "train.labels").write_bytes(job.labels.astype(np.uint8).tobytes())
        self._tasks = lambda steps: (
            clients
            * [
                rounds.client_task(
                    silo,
                    0,
                    _local_task(job, len(job.labels), steps, noise_multiplier, learning_rate),
                )
            ]
        )
        self._open.enter_context(runtime.local_worker(runtime.RuntimeConfig(cores=clients)))

    def run(self, steps: int) -> None:
        """See `Contender`."""
        update, *_ = self._updates(self._initial[np.newaxis], self._tasks(steps))
        self._trained = self._initial + update

    def parameters(self) -> np.ndarray:
        """See `Contender`."""
        return self._trained

    def close(self) -> None:
        """See `Contender`."""
        self._open.close()

    def cpu_seconds(self) -> float:
        """TFF's worker included."""
        worker = psutil.Process().children(recursive=True)
        times = [process.cpu_times() for process in worker]
        return super().cpu_seconds() + sum(time.user + time.system for time in times)

    def cost(self, steps: int) -> Cost:
        """Without what a round without a step costs: `bench round` measures that."""
        whole, empty = super().cost(steps), super().cost(0)
        return Cost(whole.seconds - empty.seconds, whole.cpu_seconds - empty.cpu_seconds)


class KerasModel(Contender):
    """A Keras model, trained by a function that takes one step."""

    def __init__(self, model: tf.keras.Model, step: Callable[[], object]):
        self._model = model
        self._step = tf.function(step)

    def run(self, steps: int) -> None:
        """See `Contender`."""
        for _ in range(steps):
            self._step()

    def parameters(self) -> np.ndarray:
        """See `Contender`."""
        return np.concatenate([weight.ravel() for weight in self._model.get_weights()])


def _keras_sgd(job: Job, noise_multiplier: float, learning_rate: float) -> Contender:
    model, inputs, labels = _model_and_batch(job)
    optimizer = tf.keras.optimizers.SGD(learning_rate)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(model(inputs, training=True), labels))
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    optimizer.build(model.trainable_weights)
    return KerasModel(model, step)


def _tf_privacy_optimizer(optimizer_class: type) -> Factory:
    def make(job: Job, noise_multiplier: float, learning_rate: float) -> Contender:
        model, inputs, labels = _model_and_batch(job)
        optimizer = optimizer_class(
            l2_norm_clip=job.clip_norm,
            noise_multiplier=noise_multiplier,
            num_microbatches=len(job.labels),
            learning_rate=learning_rate,
        )

        def step():
            optimizer.minimize(
                lambda: losses(model(inputs, training=True), labels), model.trainable_weights
            )

        return KerasModel(model, step)

    return make


def _tf_privacy_model(with_our_layers: bool) -> Factory:
    def make(job: Job, noise_multiplier: float, learning_rate: float) -> Contender:
        plain, inputs, labels = _model_and_batch(job)
        model = dp_keras_model.DPModel(
            l2_norm_clip=job.clip_norm,
            noise_multiplier=noise_multiplier,
            use_xla=False,  # on CPUs XLA makes it slower
            layer_registry=tf_privacy.layer_registry() if with_our_layers else None,
            inputs=plain.inputs,
            outputs=plain.outputs,
        )
        model.compile(
            tf.keras.optimizers.SGD(learning_rate),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.optimizer.build(model.trainable_weights)
        return KerasModel(model, lambda: model.train_step((inputs, labels)))

    return make


def _model_and_batch(job: Job) -> tuple[tf.keras.Model, tf.Tensor, tf.Tensor]:
    return keras_model(job), tf.constant(job.inputs), tf.constant(job.labels)


def _record_format(job: Job) -> RecordFormat:
    return RecordFormat(_image_shape(job), contender.PIXEL_MEAN, contender.PIXEL_STD)


def _image_shape(job: Job) -> tuple[int, int, int]:
    _, height, width, channels = job.pixels.shape
    return height, width, channels


FACTORIES: dict[str, Factory] = {
    "ours": Train,
    "ours_poisson": functools.partial(Train, records_per_batch=POISSON_RECORDS),
    "ours_in_tff": InsideTff,
    "sgd": functools.partial(Train, private=False),
    "sgd_in_tff": functools.partial(InsideTff, private=False),
    "keras_sgd": _keras_sgd,
    "vectorized_map": functools.partial(Train, engine=clipping.VectorizedMapEngine),
    "tfp_microbatches": _tf_privacy_optimizer(dp_optimizer_keras.DPKerasSGDOptimizer),
    "tfp_vectorized": _tf_privacy_optimizer(
        dp_optimizer_keras_vectorized.VectorizedDPKerasSGDOptimizer
    ),
    "tfp_dp_model": _tf_privacy_model(with_our_layers=False),
    "tfp_dp_model_our_layers": _tf_privacy_model(with_our_layers=True),
}


if __name__ == "__main__":
    serve(FACTORIES)
