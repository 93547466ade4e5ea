"""The lemma on the variance of updates, by value and against drawn gradients."""

import dataclasses
import doctest

import numpy as np
import pytest

from rdpcfl_tff.privacy import update_variance
from rdpcfl_tff.privacy.update_variance import LocalRound

ROUND = LocalRound(
    records=100,
    batch_size=10,
    local_epochs=2,
    learning_rate=0.5,
    num_parameters=4,
    clip_norm=3.0,
    noise_multiplier=2.0,
)


def test_the_lemma_by_hand():
    # K N eta^2 p c^2 z^2 / b^3 = 2 * 100 * 0.25 * 4 * 9 * 4 / 1000
    assert update_variance.noise_variance(ROUND) == pytest.approx(7.2)


def test_the_unsimplified_lemma_by_hand():
    # 2 * ceil(95 / 10) steps of 0.25 * ((9 - 1) / 10 + 4 * 9 * 4 / 100)
    local = dataclasses.replace(ROUND, records=95)
    value = update_variance.update_variance(local, mean_gradient_norm=1.0)
    assert value == pytest.approx(20 * 0.25 * 2.24)


def test_both_agree_for_a_large_model():
    large = dataclasses.replace(ROUND, num_parameters=11_181_642)
    simple = update_variance.noise_variance(large)
    full = update_variance.update_variance(large, mean_gradient_norm=0.5)
    assert full == pytest.approx(simple, rel=1e-5) and full != simple


def test_a_drawn_batch_gradient_has_the_proofs_variance():
    generator = np.random.default_rng(0)
    local = dataclasses.replace(
        ROUND, batch_size=5, num_parameters=6, clip_norm=2.0, noise_multiplier=0.4
    )
    shift = np.array([3.0, 0, 0, 0, 0, 0])

    def clipped(*shape: int) -> np.ndarray:
        gradients = generator.standard_normal((*shape, 6)) + shift
        return 2.0 * gradients / np.linalg.norm(gradients, axis=-1, keepdims=True)

    draws = 100_000
    noise = 2.0 * 0.4 * generator.standard_normal((draws, 6))
    batch_gradients = (clipped(draws, 5).sum(axis=1) + noise) / 5
    mean_gradient_norm = float(np.linalg.norm(clipped(draws).mean(axis=0)))
    expected = update_variance.gradient_variance(local, mean_gradient_norm)
    assert batch_gradients.var(axis=0).sum() == pytest.approx(expected, rel=0.02)


def test_the_example_in_the_docstring():
    results = doctest.testmod(update_variance)
    assert results.attempted > 0 and results.failed == 0
