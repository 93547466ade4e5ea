"""DP-SGD on one client: the batches, the noise, the step."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.models.resnet import resnet18
from rdpcfl_tff.privacy import dp_sgd
from rdpcfl_tff.privacy.clipping import Batch, FastEngine
from rdpcfl_tff.privacy.dp_sgd import LocalTask, gaussian_noise, poisson_batch, train
from tests.privacy.reference import clipped_sum, example_gradients

RECORDS = 300


@pytest.fixture(scope="module")
def keras_model():
    tf.keras.utils.set_random_seed(1)
    images = tf.keras.Input((6, 6, 1))
    values = tf.keras.layers.Conv2D(3, 3, activation="relu")(images)
    values = tf.keras.layers.Flatten()(tf.keras.layers.MaxPooling2D(2)(values))
    return tf.keras.Model(images, tf.keras.layers.Dense(10)(values))


@pytest.fixture(scope="module")
def engine(keras_model):
    return FastEngine(FunctionalModel(keras_model))


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (RECORDS, 6, 6, 1), dtype=np.uint8)
    return images, rng.integers(0, 10, RECORDS).astype(np.int32)


def scaled(images):
    return tf.cast(images, tf.float32) / 255.0 - 0.5


def task(**changes):
    numbers = {
        "records": RECORDS,
        "batch_size": 32,
        "steps": 1,
        "learning_rate": 0.5,
        "clip_norm": 1.0,
        "noise_multiplier": 0.0,
        "seed": (3, 4),
    } | changes
    return LocalTask(
        **{name: tf.constant(value) for name, value in numbers.items()},
    )


def update(engine, records, private=True, **changes):
    images, labels = records
    return tf.function(train)(
        engine,
        tf.constant(engine.model.initial_parameters),
        tf.constant(images),
        tf.constant(labels),
        task(**changes),
        scaled,
        private,
    ).numpy()


def drawn_batch(seed=(3, 4), step=0, batch_size=32):
    """The batch that `train` works with, drawn by the documented chain of seeds."""
    step_seed = tf.random.experimental.stateless_fold_in(tf.constant(seed), step)
    sampling_seed, noise_seed = tf.random.experimental.stateless_split(step_seed, 2)
    return poisson_batch(RECORDS, RECORDS, batch_size, sampling_seed).numpy(), noise_seed


def test_a_step_by_hand(engine, keras_model, records):
    images, labels = records
    batch, noise_seed = drawn_batch()
    gradients = example_gradients(keras_model, scaled(images[batch]), labels[batch])
    clip_norm = np.median(np.linalg.norm(gradients, axis=1))
    noise = gaussian_noise(
        engine.model.num_parameters, tf.constant(0.7 * clip_norm, tf.float32), noise_seed
    )
    total = clipped_sum(gradients, np.ones(len(batch)), clip_norm) + noise.numpy()
    expected = -0.5 * total / 32
    actual = update(engine, records, clip_norm=np.float32(clip_norm), noise_multiplier=0.7)
    assert len(batch) not in (0, 32)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_two_steps_are_one_after_the_other(engine, records):
    images, labels = records
    first = update(engine, records, steps=1, noise_multiplier=0.3)
    both = update(engine, records, steps=2, noise_multiplier=0.3)
    batch, noise_seed = drawn_batch(step=1)
    middle = tf.constant(engine.model.initial_parameters + first)
    total = engine.gradient_sum(
        middle,
        Batch(scaled(images[batch]), labels[batch], tf.ones(len(batch))),
        tf.constant(1.0),
    ) + gaussian_noise(engine.model.num_parameters, tf.constant(0.3), noise_seed)
    np.testing.assert_allclose(both - first, -0.5 * total / 32, atol=2e-6)


def test_full_batch_is_the_sum_over_all_records(engine, keras_model, records):
    images, labels = records
    gradients = example_gradients(keras_model, scaled(images), labels)
    expected = -0.5 * clipped_sum(gradients, np.ones(RECORDS), 1.0) / RECORDS
    actual = update(engine, records, batch_size=RECORDS)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(("largest", "multiple"), [(16, 8), (7, 1), (512, 64)])
def test_chunking_does_not_matter(engine, records, monkeypatch, largest, multiple):
    expected = update(engine, records, batch_size=RECORDS // 2, noise_multiplier=0.5)
    monkeypatch.setattr(dp_sgd, "LARGEST_CHUNK", largest)
    monkeypatch.setattr(dp_sgd, "CHUNK_MULTIPLE", multiple)
    actual = update(engine, records, batch_size=RECORDS // 2, noise_multiplier=0.5)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_an_empty_batch_still_adds_noise(engine, records):
    seed = next((s, 0) for s in range(100) if not len(drawn_batch((s, 0), batch_size=1)[0]))
    _, noise_seed = drawn_batch(seed, batch_size=1)
    noise = gaussian_noise(engine.model.num_parameters, tf.constant(2.0), noise_seed)
    actual = update(engine, records, batch_size=1, seed=seed, noise_multiplier=2.0)
    np.testing.assert_allclose(actual, -0.5 * noise, rtol=1e-6)
    assert np.abs(actual).min() > 0


def test_without_privacy_there_is_no_clipping_and_no_noise(engine, keras_model, records):
    images, labels = records
    batch, _ = drawn_batch()
    gradients = example_gradients(keras_model, scaled(images[batch]), labels[batch])
    actual = update(engine, records, private=False, clip_norm=1e-3, noise_multiplier=100.0)
    np.testing.assert_allclose(actual, -0.5 * gradients.sum(axis=0) / 32, atol=1e-6)


def test_zero_steps_change_nothing(engine, records):
    assert not update(engine, records, steps=0, noise_multiplier=1.0).any()


def test_same_seed_same_bits_other_seed_other_noise(engine, records):
    first, same, other = (
        update(engine, records, steps=3, noise_multiplier=1.0, seed=(3, last)) for last in (4, 4, 5)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.any(first == other)


def test_noise_is_gaussian():
    noise = gaussian_noise(200_001, tf.constant(2.5), tf.constant([1, 2])).numpy()
    assert noise.shape == (200_001,)
    assert scipy.stats.kstest(noise, scipy.stats.norm(scale=2.5).cdf).pvalue > 0.01
    # Cosine and sine of one pair share their radius: they must be independent all the same.
    half = 100_001
    first, second = noise[: half - 1] ** 2, noise[half:] ** 2
    assert abs(scipy.stats.pearsonr(first, second).statistic) < 4 / half**0.5
    for seed in ([1, 3], [2, 2]):
        other = gaussian_noise(200_001, tf.constant(2.5), tf.constant(seed)).numpy()
        assert abs(scipy.stats.pearsonr(noise, other).statistic) < 4 / 200_001**0.5


def test_noise_has_no_hole_in_its_tails():
    noise = np.abs(gaussian_noise(20_000_000, tf.constant(1.0), tf.constant([5, 6])).numpy())
    for threshold in (3.0, 4.0, 5.0):
        expected = len(noise) * 2 * scipy.stats.norm.sf(threshold)
        interval = scipy.stats.poisson(expected).interval(0.999)
        assert interval[0] <= np.sum(noise > threshold) <= interval[1]


def test_sampling_rate_by_chi_square():
    """Batch sizes are binomial, and every record is drawn equally often."""
    records, batch_size, draws = 40, 10, 3000

    @tf.function
    def counts(seed):
        chosen = poisson_batch(records, records, batch_size, seed)
        return tf.scatter_nd(chosen[:, tf.newaxis], tf.ones_like(chosen), [records])

    table = np.stack([counts(tf.constant([7, i])) for i in range(draws)])
    assert set(np.unique(table)) == {0, 1}

    rate = batch_size / records
    drawn = table.sum(axis=0)
    statistic = np.sum((drawn - draws * rate) ** 2 / (draws * rate * (1 - rate)))
    assert scipy.stats.chi2(records).sf(statistic) > 0.01

    sizes = np.bincount(table.sum(axis=1), minlength=records + 1)
    expected = draws * scipy.stats.binom(records, rate).pmf(np.arange(records + 1))
    common = expected >= 5
    observed, expected = (
        np.append(values[common], values[~common].sum()) for values in (sizes, expected)
    )
    assert scipy.stats.chisquare(observed, expected).pvalue > 0.01


def test_inclusion_probability_never_exceeds_the_accounted_rate():
    """Checked at the coins beside the threshold, which a float32 comparison would get wrong."""
    for records, batch_size in [(8000, 32), (3, 1), (6666, 6665), (2**31 - 1, 1)]:
        threshold = batch_size * 2**32 // records
        assert threshold / 2**32 <= batch_size / records
        coins = np.array([0, threshold - 1, threshold, 2**32 - 1])
        expected = coins < threshold
        np.testing.assert_array_equal(
            dp_sgd.included(
                tf.constant(coins, tf.uint32), tf.constant(records), tf.constant(batch_size)
            ),
            expected,
        )


def test_every_record_is_in_a_full_batch():
    for present in (999, 1000, 1001):
        batch = poisson_batch(present, 1000, 1000, tf.constant([1, 1]))
        np.testing.assert_array_equal(batch, np.arange(present))


def test_the_sampling_rate_does_not_follow_the_neighbour():
    """The rate is the announced b/N, however many records are really there."""
    drawn = [len(poisson_batch(4000, 1000, 300, tf.constant([5, i]))) for i in range(200)]
    assert abs(np.mean(drawn) - 4000 * 0.3) < 4 * np.sqrt(4000 * 0.3 * 0.7 / 200)


def test_weights_that_nothing_depends_on_get_the_noise_of_all_steps(records):
    tf.keras.utils.set_random_seed(2)
    images = tf.keras.Input((6, 6, 1))
    values = tf.keras.layers.Conv2D(8, 3, strides=4, padding="same")(images)
    values = tf.keras.layers.Conv2D(16, 5, padding="same", use_bias=False)(values)
    values = tf.keras.layers.Dense(10)(tf.keras.layers.Flatten()(values))
    model = FunctionalModel(tf.keras.Model(images, values))
    live = model.spread(tf.ones(model.num_live_parameters)).numpy() == 1
    # On a 2x2 image 3x3 of the 5x5 taps meet a pixel.
    assert (~live).sum() == (25 - 9) * 8 * 16

    steps = 9
    engine = FastEngine(model)
    moved = update(engine, records, steps=steps, noise_multiplier=1000.0, clip_norm=0.01)
    # So much noise leaves nothing to see of the gradients.
    standardised = moved / (0.5 / 32 * 0.01 * 1000.0 * np.sqrt(steps))
    for part in (standardised[live], standardised[~live]):
        assert scipy.stats.kstest(part, "norm").pvalue > 0.001
    per_step = [
        update(engine, records, steps=1, noise_multiplier=1000.0, seed=(number, 1))[~live]
        for number in range(2)
    ]
    assert abs(np.corrcoef(per_step)[0, 1]) < 0.1
    assert abs(np.corrcoef(moved[~live], per_step[0])[0, 1]) < 0.1


def test_spread_is_where_the_gradients_are():
    model = FunctionalModel(resnet18())
    assert model.num_parameters - model.num_live_parameters == 6_946_816
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(2, 32, 32, 3)).astype(np.float32)
    gradient = FastEngine(model).gradient_sum(
        tf.constant(model.initial_parameters),
        Batch(inputs, tf.constant([1, 2]), tf.ones(2)),
        1.0,
    )
    live = model.spread(tf.ones(model.num_live_parameters)).numpy()
    assert np.all(gradient.numpy()[live == 0] == 0)
    # The rest met only inputs that ReLU had set to zero.
    assert np.mean(gradient.numpy()[live == 1] != 0) > 0.5
