"""The audit: an attack on what a real client releases proves no more than the claimed epsilon.

The client's own computation runs in the TFF worker thousands of times, on a silo of real digits
with a canary and on the neighbouring silo. A sabotaged client gets other numbers than those that
are claimed; the same attack then proves an epsilon above the claim.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from rdpcfl_tff.data import sources
from rdpcfl_tff.federated import client_data, rounds, scoring
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import accounting, clipping, dp_sgd, randomness
from tests.statistical import audit

pytestmark = pytest.mark.statistical

RUNS = 4000
# TFF builds a new executor for every new number of clients, so it is always the same.
RUNS_PER_CALL = 250

DELTA = 1e-4
NOISE_MULTIPLIER = 1.5
CLIP_NORM = 0.5
# So small that a gradient keeps its direction over all steps. It does not matter to the attack.
LEARNING_RATE = 0.001

RECORDS = 64
FULL_BATCH = accounting.Schedule(RECORDS, rounds=1, batch_size=RECORDS, first_batch_size=RECORDS)
SAMPLED = accounting.Schedule(RECORDS, rounds=1, batch_size=32, first_batch_size=32, local_epochs=2)
TWO_RECORDS = accounting.Schedule(2, rounds=1, batch_size=1, first_batch_size=1, local_epochs=2)

SELECTION_RECORDS = 40
SELECTION_MODELS = 10
EPSILON_SELECT = 1.0

HALF_THE_NOISE = {"noise_multiplier": NOISE_MULTIPLIER / 2}
TWICE_THE_CLIP_NORM = HALF_THE_NOISE | {"clip_norm": 2 * CLIP_NORM}  # and the noise as claimed
EVERY_RECORD_IN_EVERY_BATCH = {"batch_size": RECORDS}


@dataclasses.dataclass(frozen=True)
class Attacker:
    """Knows everything but the noise, the batches, and whether the canary is there."""

    engine: clipping.Engine
    records: client_data.RecordFormat

    def gradient(self, parameters, record):
        """The gradient of one record, not clipped."""
        image, label = record
        never = tf.constant(1e6)
        batch = clipping.Batch(self.records.scale(image), label, tf.ones(1))
        return self.engine.gradient_sum(tf.constant(parameters), batch, never).numpy()

    def scores(self, updates, start, canary, silos, tasks):
        """For both worlds: how far each run's update goes where the canary pushes it."""
        direction = -self.gradient(start, canary)
        return [
            runs(
                updates,
                start[np.newaxis],
                lambda seed, silo=silo, task=task: rounds.client_task(
                    silo, 0, task._replace(seed=seed)
                ),
                randomness.Purpose.SAMPLING_AND_NOISE,
                world,
            )
            @ direction
            for world, (silo, task) in enumerate(zip(silos, tasks, strict=True))
        ]


@pytest.fixture(scope="module")
def digits():
    return sources.load("digits")


@pytest.fixture(scope="module")
def attacker():
    """On a model so small that thousands of runs are affordable."""
    tf.keras.utils.set_random_seed(0)
    images = tf.keras.Input((28, 28, 1))
    # No bias here: black pixels stay at ReLU's 0, and only the border tells of the canary.
    convolution = tf.keras.layers.Conv2D(8, 2, strides=2, activation="relu", use_bias=False)
    values = convolution(images)
    logits = tf.keras.layers.Dense(10)(tf.keras.layers.Flatten()(values))
    return Attacker(
        clipping.FastEngine(FunctionalModel(tf.keras.Model(images, logits))),
        client_data.RecordFormat((28, 28, 1), mean=0.0, std=1.0),
    )


@pytest.fixture(scope="module")
def updates(worker, attacker):
    return rounds.build_updates(attacker.records, attacker.engine, private=True)


@pytest.fixture(scope="module")
def select(worker, attacker):
    return scoring.build_selection(SELECTION_MODELS, attacker.engine.model, attacker.records)


@pytest.fixture(scope="module")
def canary():
    """Noise in the border, where the digits are black: its gradient is unlike all others."""
    image = np.random.default_rng(0).integers(0, 256, (1, 28, 28, 1), dtype=np.uint8)
    image[:, 2:-2, 2:-2] = 0
    return image, np.zeros(1, np.uint8)


@pytest.fixture(scope="module")
def silos(digits, canary, tmp_path_factory):
    """63 digits with the canary, and the neighbour without it."""
    others = digits.train_images[: RECORDS - 1], digits.train_labels[: RECORDS - 1]
    return write_neighbours(tmp_path_factory, others, canary)


def write_neighbours(tmp_path_factory, others, canary):
    together = (np.concatenate(parts) for parts in zip(others, canary, strict=True))
    return (
        write_silo(tmp_path_factory.mktemp("silo"), *together),
        write_silo(tmp_path_factory.mktemp("silo"), *others),
    )


def write_silo(folder, images, labels):
    (folder / "train.images").write_bytes(images.tobytes())
    (folder / "train.labels").write_bytes(labels.tobytes())
    return str(folder)


def claimed_task(schedule):
    """What the claims are about; the seed is still to come."""
    return dp_sgd.LocalTask(
        records=schedule.records,
        batch_size=schedule.batch_size,
        steps=accounting.steps_per_round(
            schedule.records, schedule.batch_size, schedule.local_epochs
        ),
        learning_rate=LEARNING_RATE,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        seed=None,
    )


def runs(computation, models, task_of_seed, purpose, world):
    """What the client releases in each of RUNS runs; many of them are one call's clients."""
    key = randomness.run_key(0)
    seeds = [randomness.stream_seed(key, purpose, round=world, client=run) for run in range(RUNS)]
    return np.concatenate(
        [
            computation(models, [task_of_seed(s) for s in seeds[first : first + RUNS_PER_CALL]])
            for first in range(0, RUNS, RUNS_PER_CALL)
        ]
    )


def judge(scores, schedule, sabotaged, tightness):
    """No proof against an honest client, but nearly one; a proof against a sabotaged one."""
    claimed = accounting.epsilon_spent(schedule, NOISE_MULTIPLIER, DELTA)
    with_canary, without_canary = scores
    proven = audit.epsilon_lower_bound(with_canary, without_canary, schedule, DELTA)
    print(f"epsilon: claimed {claimed:.2f}, proven {proven:.2f}")
    if sabotaged:
        assert proven > claimed
    else:
        assert tightness * claimed < proven < claimed


def test_the_canary_is_what_the_attack_needs(attacker, updates, digits, canary, silos):
    task = claimed_task(SAMPLED)._replace(seed=(0, 0))
    start = attacker.engine.model.initial_parameters
    (update,) = updates(start[np.newaxis], [rounds.client_task(silos[0], 0, task)])
    first, last = (attacker.gradient(theta, canary) for theta in (start, start + update))
    assert np.linalg.norm(first) > 2 * CLIP_NORM, "it must use all that clipping leaves it"
    assert cosine(first, last) > 0.99, "it must push in one direction in all steps"
    for record in range(RECORDS - 1):
        only = slice(record, record + 1)
        other = attacker.gradient(start, (digits.train_images[only], digits.train_labels[only]))
        assert abs(cosine(first, other)) < 0.1, "the others must not push there"


def cosine(one, other):
    return one @ other / (np.linalg.norm(one) * np.linalg.norm(other))


@pytest.mark.parametrize(
    "sabotage",
    [{}, HALF_THE_NOISE, TWICE_THE_CLIP_NORM],
    ids=["honest", "half the noise", "twice the clip norm"],
)
def test_a_full_batch(attacker, updates, canary, silos, sabotage):
    tasks = [claimed_task(FULL_BATCH)._replace(**sabotage)] * 2
    start = attacker.engine.model.initial_parameters
    scores = attacker.scores(updates, start, canary, silos, tasks)
    judge(scores, FULL_BATCH, bool(sabotage), tightness=0.7)


@pytest.mark.parametrize(
    "sabotage",
    [{}, HALF_THE_NOISE, EVERY_RECORD_IN_EVERY_BATCH],
    ids=["honest", "half the noise", "every record in every batch"],
)
def test_poisson_batches(attacker, updates, canary, silos, sabotage):
    tasks = [claimed_task(SAMPLED)._replace(**sabotage)] * 2
    start = attacker.engine.model.initial_parameters
    scores = attacker.scores(updates, start, canary, silos, tasks)
    judge(scores, SAMPLED, bool(sabotage), tightness=0.5)


@pytest.mark.parametrize(
    "sabotage", [{}, {"records": 1}], ids=["honest", "N is counted, not announced"]
)
def test_the_sampling_rate_does_not_follow_the_neighbour(
    attacker, updates, digits, tmp_path_factory, sabotage
):
    """If N were counted, the other record would be drawn more often where the canary is missing.

    It pushes against the canary, so that this shows as much as the missing canary itself.
    """
    canary, other = (
        (digits.train_images[chosen], digits.train_labels[chosen])
        for chosen in (np.flatnonzero(digits.train_labels == label)[:1] for label in (0, 1))
    )
    silos = write_neighbours(tmp_path_factory, other, canary)
    start = says(attacker.engine.model, [0, 1])  # there the gradients are opposite
    tasks = claimed_task(TWO_RECORDS), claimed_task(TWO_RECORDS)._replace(**sabotage)
    scores = attacker.scores(updates, start, canary, silos, tasks)
    judge(scores, TWO_RECORDS, bool(sabotage), tightness=0.5)


@pytest.mark.parametrize("factor", [1, 2], ids=["honest", "half the noise"])
def test_selection(attacker, select, digits, tmp_path_factory, factor):
    """Replacing one record is the worst case: one model says 0, the others 1, and all scores move.

    What is claimed of a selection holds under both adjacencies.
    """
    zeros, ones = (digits.train_images[digits.train_labels == label] for label in (0, 1))
    silos = [
        write_silo(
            tmp_path_factory.mktemp("silo"),
            np.concatenate([zeros[:num_zeros], ones[: SELECTION_RECORDS - num_zeros]]),
            np.repeat([0, 1], [num_zeros, SELECTION_RECORDS - num_zeros]).astype(np.uint8),
        )
        for num_zeros in (SELECTION_RECORDS // 2 + 1, SELECTION_RECORDS // 2)
    ]
    model = attacker.engine.model
    models = np.stack([says(model, [0])] + [says(model, [1])] * (SELECTION_MODELS - 1))
    chosen = [
        runs(
            select,
            models,
            lambda seed, silo=silo: scoring.selection_task(
                silo, SELECTION_RECORDS, factor * EPSILON_SELECT, seed
            ),
            randomness.Purpose.SELECTION,
            world,
        )
        for world, silo in enumerate(silos)
    ]
    proven = audit.pure_epsilon_lower_bound(*chosen)
    print(f"epsilon: claimed {EPSILON_SELECT:.2f}, proven {proven:.2f}")
    if factor > 1:
        assert proven > EPSILON_SELECT
    else:
        assert 0.5 * EPSILON_SELECT < proven < EPSILON_SELECT


def says(model, labels):
    """Parameters with which the model gives every image these labels, all alike probable."""
    weights = [np.zeros_like(weight) for weight in model.unflatten(model.initial_parameters)]
    biases = weights[-1]
    biases[labels] = 10
    return model.flatten(weights).numpy()
