"""Selection frequencies against the closed form of the exponential mechanism."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from rdpcfl_tff.privacy import selection
from rdpcfl_tff.privacy.selection import probabilities, select

SCORES = np.array([0.90, 0.905, 0.88, 0.903])
RECORDS = 1000


def _draws(scores, records, epsilon_select, count):
    """Many selections, each with a seed of its own, inside one graph."""
    seeds = tf.random.stateless_uniform([count, 2], [1, 2], None, None, tf.int32)

    @tf.function
    def draw():
        return tf.map_fn(
            lambda seed: select(tf.constant(scores), records, epsilon_select, seed),
            seeds,
            fn_output_signature=tf.int32,
            parallel_iterations=1,
        )

    return draw().numpy()


@pytest.mark.parametrize("epsilon_select", [0.01, 0.45, 2.0])
def test_frequencies_are_the_exponential_mechanisms(epsilon_select):
    count = 20000
    observed = np.bincount(_draws(SCORES, RECORDS, epsilon_select, count), minlength=4)
    # The closed form, written out here: exp(epsilon * score / (2 * sensitivity)), normalised.
    weights = np.exp(epsilon_select * (SCORES - 0.9) / (2 / (RECORDS - 1)))
    expected = weights / weights.sum()
    np.testing.assert_allclose(probabilities(SCORES, RECORDS, epsilon_select), expected)
    seen = expected * count >= 5
    observed = np.append(observed[seen], observed[~seen].sum())
    expected = np.append(expected[seen], expected[~seen].sum() + 1e-12)
    assert stats.chisquare(observed, expected / expected.sum() * count).pvalue > 1e-3


def test_the_frequencies_would_show_a_scale_twice_too_small():
    observed = np.bincount(_draws(SCORES, RECORDS, 0.9, 20000), minlength=4)
    expected = probabilities(SCORES, RECORDS, 0.45) * 20000
    assert stats.chisquare(observed, expected).pvalue < 1e-6


@pytest.mark.parametrize("best", range(4))
def test_infinite_epsilon_is_the_plain_argmax(best):
    scores = np.full(4, 0.5)
    scores[best] += 1e-9
    assert set(_draws(scores, RECORDS, math.inf, 50)) == {best}
    assert probabilities(scores, RECORDS, math.inf)[best] == 1.0


def test_same_seed_same_choice_and_other_seeds_other_choices():
    def choices(first):
        return [
            int(select(tf.zeros(10, tf.float64), RECORDS, 1.0, [first, second]))
            for second in range(30)
        ]

    assert choices(1) == choices(1)
    assert choices(1) != choices(2)


def test_gumbel_noise_is_gumbel():
    uniform = tf.random.stateless_uniform([200_000], [5, 6], dtype=tf.float64)
    assert stats.kstest(selection._gumbel(uniform).numpy(), "gumbel_r").pvalue > 1e-3


def test_gumbel_noise_is_finite_at_both_ends_of_the_generator():
    ends = tf.constant([0.0, 1 - 2.0**-52], tf.float64)
    np.testing.assert_allclose(selection._gumbel(ends).numpy(), [-3.603, 36.737], rtol=1e-3)


def test_the_generator_is_as_fine_as_the_noise_assumes():
    uniform = tf.random.stateless_uniform([100_000], [5, 6], dtype=tf.float64, alg="philox")
    steps = uniform.numpy() * 2.0**52
    assert np.all(steps == np.floor(steps))
    assert np.mean(steps % 2 == 1) > 0.45


def test_neighbouring_datasets_have_probabilities_within_epsilon():
    # One record more or less, right or wrong, or changed: exact counts over a small N.
    epsilon_select, records = 0.7, 20
    rng = np.random.default_rng(0)
    for _ in range(200):
        correct = rng.integers(0, records + 1, 5)
        here = probabilities(correct / records, records, epsilon_select)
        swap = np.clip(correct + rng.integers(-1, 2, 5), 0, records)
        removed = np.minimum(np.maximum(correct - rng.integers(0, 2, 5), 0), records - 1)
        for there in (
            probabilities(swap / records, records, epsilon_select),
            # The mechanism's public N stays; only the true number of records differs.
            probabilities(removed / (records - 1), records, epsilon_select),
        ):
            assert np.max(np.abs(np.log(here) - np.log(there))) <= epsilon_select


def test_float32_scores_are_refused():
    with pytest.raises(ValueError, match="float32"):
        select(tf.constant([0.5, 0.6], tf.float32), RECORDS, 1.0, [0, 1])


def test_number_of_records_may_be_a_tensor():
    @tf.function
    def choose(records, epsilon_select, seed):
        return select(tf.constant(SCORES), records, epsilon_select, seed)

    for second in range(20):
        assert int(choose(tf.constant(RECORDS), tf.constant(0.45, tf.float64), [3, second])) == int(
            select(tf.constant(SCORES), RECORDS, 0.45, [3, second])
        )
