"""Clients of unequal noise: found by their clusters, and not by how noisy they are."""

import numpy as np
import pytest

from rdpcfl_tff.clustering.count import count_clusters
from rdpcfl_tff.clustering.matching import match_partition
from rdpcfl_tff.clustering.mixture import default_mixture, principal_components

TRUE = [0] * 2 + [1] * 5 + [2] * 4
# As of full batches of 290 to 520 records.
NOISE = 100 / np.array([520, 430, 420, 390, 360, 330, 290, 500, 460, 430, 400])
CANDIDATES = range(2, 7)


def updates(seed: int, distance: float, parameters: int = 4000) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centres = distance * generator.standard_normal((3, parameters)) / np.sqrt(parameters)
    noise = NOISE[:, np.newaxis] * generator.standard_normal((len(TRUE), parameters))
    return (centres[TRUE] + noise).astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_known_noise_finds_clusters_that_unknown_noise_hides(seed):
    sample = updates(seed, distance=8)
    known = principal_components(sample, NOISE)
    assert match_partition(default_mixture(known, 3).partition.tolist(), TRUE).exact
    counted = count_clusters(known, CANDIDATES, seed=0)
    assert counted.detected and counted.default_choice == 3
    unknown = principal_components(sample)
    assert not match_partition(default_mixture(unknown, 3).partition.tolist(), TRUE).exact


def test_noise_that_differs_is_not_taken_for_clusters():
    found = {"known": 0, "unknown": 0}
    for seed in range(20):
        sample = updates(seed, distance=0)
        for name, noise in (("known", NOISE), ("unknown", None)):
            counted = count_clusters(principal_components(sample, noise), CANDIDATES, seed=0)
            found[name] += counted.detected
    assert found["known"] <= 4, "a level of 5 % gives more than 4 of 20 once in 400"
    assert found["unknown"] == 20, "the trap: the noisiest clients look like clusters of one"


def test_equal_noise_changes_nothing_but_the_last_bits():
    sample = updates(0, distance=8)
    unknown = principal_components(sample)
    known = principal_components(sample, np.full(len(TRUE), 3.0))
    np.testing.assert_allclose(known.eigenvalues, unknown.eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(known.coordinates, unknown.coordinates, atol=1e-6)
    np.testing.assert_allclose(
        default_mixture(known, 3).responsibilities,
        default_mixture(unknown, 3).responsibilities,
        atol=1e-9,
    )


def test_a_noisy_client_moves_a_mean_less_and_is_less_sure():
    generator = np.random.default_rng(1)
    noise = np.array([1.0] * 6 + [3.0] * 2)
    clusters = np.array([0, 0, 0, 1, 1, 1, 0, 1])
    sample = 20 * np.eye(2, 500)[clusters] + noise[:, np.newaxis] * generator.standard_normal(
        (8, 500)
    )
    mixture = default_mixture(principal_components(sample, noise), 2)
    members = mixture.partition == mixture.partition[0]
    weights = members / noise**2
    expected = weights @ mixture.coordinates / weights.sum()
    np.testing.assert_allclose(mixture.means[mixture.partition[0]], expected, rtol=0.05)


def test_the_noise_may_be_given_up_to_a_factor():
    sample = updates(3, distance=8)
    small, large = (principal_components(sample, factor * NOISE) for factor in (1e-3, 1e3))
    np.testing.assert_allclose(small.coordinates, large.coordinates, rtol=1e-6)
    assert np.mean(small.noise**2) == pytest.approx(1)
