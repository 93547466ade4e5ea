"""The updates of round 1, as the clients of a run send them, for a look at stage 1 alone.

What a client's full batch sums up to depends neither on epsilon nor on the noise: it is computed
once and cached, and only the noise is drawn again. With smaller batches, every draw is a training.
What is cached is private, the sums above all, which are UNNOISED: for simulations only, in files
named `simulation_...`.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from rdpcfl_tff import storage
from rdpcfl_tff.algorithms.base import Clustering
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.privacy import accounting, clipping, dp_sgd, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan
from rdpcfl_tff.training import assembly


class FirstRound:
    """Round 1 of one federation, to be drawn again and again.

    The split, theta_init, learning rate and clip norm are those of a run with `config`; epsilon and
    the batch sizes are up to the plan of each draw.

    Attributes:
        config: An R-DPCFL run.
        store: Its silos.
        folder: Where sums and updates are cached.
        client_done: Called after each client, for a progress bar.
    """

    def __init__(
        self,
        config: RunConfig,
        store: SiloStore,
        folder: pathlib.Path,
        client_done: Callable[[], object] = lambda: None,
    ):
        self.config = config
        self.store = store
        self.folder = folder
        self.client_done = client_done

    @functools.cached_property
    def engine(self) -> clipping.Engine:
        """Clips and sums gradients, of the model with the run's initial weights."""
        return clipping.fast_engine(assembly.model_of(self.config, self.store))

    @property
    def num_parameters(self) -> int:
        """p."""
        return self.engine.model.num_parameters

    @property
    def records(self) -> int:
        """N, the train records of a client: the same for all of them."""
        return self.store.client_sizes["train"][0]

    def plan(
        self, epsilon: float, batch_size: int | None = None, first_batch_size: int | None = None
    ) -> PrivacyPlan:
        """The noise of a whole run: b is the config's if not given, b1 the full batch."""
        config = dataclasses.replace(
            self.config,
            epsilon=epsilon,
            batch_size=batch_size or self.config.batch_size,
            first_batch_size=first_batch_size,
        )
        schedule = assembly.algorithm_of(config, self.store).schedule
        return PrivacyPlan.calibrate(
            [schedule(records) for records in self.store.client_sizes["train"]],
            epsilon,
            config.delta,
        )

    def cluster(self, updates: np.ndarray, mixture: str, num_clusters: int | None) -> Clustering:
        """What the server of a run makes of the updates; None searches the number of clusters."""
        config = dataclasses.replace(self.config, mixture=mixture, num_clusters=num_clusters)
        algorithm = assembly.algorithm_of(config, self.store)
        assert isinstance(algorithm, RDPCFL)
        return algorithm.cluster(updates)

    def updates(self, plan: PrivacyPlan, draw: int) -> np.ndarray:
        """What the server gets in round 1, float32 [n, p]; each draw has noise of its own."""
        steps = {
            accounting.steps_per_round(one.records, one.first_batch_size, one.local_epochs)
            for one in plan.schedules
        }
        if steps == {1} and all(one.first_batch_size == one.records for one in plan.schedules):
            # The seed is text, so that no two settings share their noise.
            stream = f"{self.store.path.name} {plan.noise_multiplier(0, round_number=1)} {draw}"
            generator = np.random.default_rng([*stream.encode()])
            return noised_updates(self.sums, plan, self.config, generator)
        return self.trained_updates(plan, draw)

    @functools.cached_property
    def sums(self) -> np.ndarray:
        """Each client's sum of clipped gradients over its full batch, float32 [n, p]: UNNOISED."""
        return self._cached("sums", {}, range(self.store.num_clients), self._clipped_sum)

    def gradient_norms(self, client: int, number: int) -> np.ndarray:
        """The norms, before clipping, of a client's first gradients at theta_init: private."""
        images, labels = self.store.read(client, "train")
        scale = RecordFormat.of(self.store).scale
        theta_init = tf.constant(self.engine.model.initial_parameters)
        no_clipping = np.finfo(np.float32).max

        @tf.function(autograph=False)
        def norm(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
            batch = clipping.Batch(scale(image), label, tf.ones(1))
            return tf.norm(self.engine.gradient_sum(theta_init, batch, no_clipping))

        labels = labels.astype(np.int32)
        return np.array(
            [norm(images[one : one + 1], labels[one : one + 1]) for one in range(number)]
        )

    def trained_updates(
        self, plan: PrivacyPlan, draw: int, clients: Sequence[int] | None = None
    ) -> np.ndarray:
        """Round 1 in as many steps as it has, float32 [n, p]; draw 0 is the run of this seed.

        With noise multipliers of 0 in the plan it still clips, and what comes out is UNNOISED.
        """
        chosen = range(self.store.num_clients) if clients is None else clients
        details = {
            "schedules": [
                (one.records, one.first_batch_size, one.local_epochs) for one in plan.schedules
            ],
            "noise_multipliers": plan.first_round_noise_multipliers,
            "learning_rate": self.config.learning_rate,
            "seed": self.config.seed,
            "draw": draw,
            "clients": list(chosen),
        }
        kind = f"updates-b1_{plan.schedules[0].first_batch_size}-draw{draw}"
        return self._cached(kind, details, chosen, lambda client: self._trained(plan, client, draw))

    def _cached(
        self,
        kind: str,
        details: dict[str, object],
        clients: Sequence[int],
        compute: Callable[[int], np.ndarray],
    ) -> np.ndarray:
        """A row per client, from the cache if it is there."""
        theta_init = self.engine.model.initial_parameters
        # The manifest has a digest of each client's records.
        digest = hashlib.sha256(
            json.dumps([self.store.manifest, details]).encode() + theta_init.tobytes()
        )
        path = self.folder / (
            f"simulation_{self.store.path.name}-{self.config.model}-clip{self.config.clip_norm}-"
            f"{kind}-{digest.hexdigest()[:16]}.float32"
        )
        shape = (len(clients), self.num_parameters)
        with storage.locked(path, cache.WAY_OUT):
            if not path.exists():
                rows = np.zeros(shape, np.float32)
                # A client on each core is faster than all cores on one client.
                with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                    for row, values in enumerate(pool.map(compute, clients)):
                        rows[row] = values
                        self.client_done()
                with storage.explained(self.folder, cache.WAY_OUT):
                    storage.write_atomically(path, [rows])
                return rows
        for _ in clients:
            self.client_done()
        return np.fromfile(path, np.float32).reshape(shape)

    def _clipped_sum(self, client: int) -> np.ndarray:
        images, labels = self.store.read(client, "train")
        total = np.zeros(self.num_parameters, np.float32)
        for indices, weights in _chunks(len(labels)):
            total += self._chunk_sum(images[indices], labels[indices].astype(np.int32), weights)
        return total

    @functools.cached_property
    def _chunk_sum(self) -> Callable[..., tf.Tensor]:
        scale = RecordFormat.of(self.store).scale
        theta_init = tf.constant(self.engine.model.initial_parameters)

        @tf.function(autograph=False)
        def chunk_sum(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            batch = clipping.Batch(scale(images), labels, weights)
            return self.engine.gradient_sum(theta_init, batch, self.config.clip_norm)

        return chunk_sum

    def _trained(self, plan: PrivacyPlan, client: int, draw: int) -> np.ndarray:
        schedule = plan.schedules[client]
        seed = randomness.stream_seed(
            randomness.run_key(self.config.seed),
            randomness.Purpose.SAMPLING_AND_NOISE,
            round=1 + draw,
            client=client,
        )
        task = dp_sgd.LocalTask(
            records=tf.constant(schedule.records),
            batch_size=tf.constant(schedule.first_batch_size),
            steps=tf.constant(
                accounting.steps_per_round(
                    schedule.records, schedule.first_batch_size, schedule.local_epochs
                )
            ),
            learning_rate=tf.constant(self.config.learning_rate),
            clip_norm=tf.constant(self.config.clip_norm),
            noise_multiplier=tf.constant(plan.noise_multiplier(client, round_number=1)),
            seed=tf.constant(seed),
        )
        images, labels = self.store.read(client, "train")
        return self._train(images, labels.astype(np.int32), task).numpy()

    @functools.cached_property
    def _train(self) -> Callable[..., tf.Tensor]:
        scale = RecordFormat.of(self.store).scale
        theta_init = tf.constant(self.engine.model.initial_parameters)

        @tf.function(autograph=False)
        def train(images: tf.Tensor, labels: tf.Tensor, task: dp_sgd.LocalTask) -> tf.Tensor:
            return dp_sgd.train(self.engine, theta_init, images, labels, task, scale, private=True)

        return train


def noised_updates(
    sums: np.ndarray, plan: PrivacyPlan, config: RunConfig, generator: np.random.Generator
) -> np.ndarray:
    """The update of one full-batch step: -(lr / b1) (sum + c z N(0, I)) of each client, [n, p]."""
    z = np.array(plan.first_round_noise_multipliers, np.float32)[:, np.newaxis]
    b1 = np.array([schedule.first_batch_size for schedule in plan.schedules], np.float32)
    # In place: with ResNet-18 each such array takes a gigabyte.
    updates = generator.standard_normal(sums.shape, np.float32)
    updates *= config.clip_norm * z
    updates += sums
    updates *= -config.learning_rate / b1[:, np.newaxis]
    return updates


def _chunks(num_records: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Indices and weights; the last chunk is filled up at weight 0, so that all have one shape."""
    for start in range(0, num_records, dp_sgd.LARGEST_CHUNK):
        indices = np.arange(start, start + dp_sgd.LARGEST_CHUNK)
        weights = (indices < num_records).astype(np.float32)
        yield indices.clip(max=num_records - 1), weights
