import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import norm

from rdpcfl_tff.clustering.count import noise_alone
from rdpcfl_tff.clustering.matching import match_partition
from rdpcfl_tff.clustering.mixture import (
    PrincipalComponents,
    default_mixture,
    max_pairwise_overlap,
    paper_mixture,
    principal_components,
    separation_scores,
    signal_shares,
    switch_round,
)
from rdpcfl_tff.errors import UserError
from tests.clustering.example_updates import clustered_updates


def both_mixtures(updates, num_clusters):
    components = principal_components(updates)
    return paper_mixture(components, num_clusters, seed=0), default_mixture(
        components, num_clusters
    )


def test_separation_scores_by_hand():
    means = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 8.0]])
    variances = np.array([1.0, 4.0, 0.25])
    scores = separation_scores(means, variances)
    # Distances 5, 8, 5, each over twice the larger standard deviation: 2, 1, 2.
    np.testing.assert_allclose(
        scores, [[np.inf, 5 / 4, 8 / 2], [5 / 4, np.inf, 5 / 4], [8 / 2, 5 / 4, np.inf]]
    )


@pytest.mark.parametrize("mss", [0.0, 0.5, 1.0, 2.0, 6.0])
def test_overlap_is_twice_the_normal_tail(mss):
    assert max_pairwise_overlap(mss) == pytest.approx(2 * norm.sf(mss), rel=1e-12)


@pytest.mark.parametrize(
    ("mpo", "rounds", "expected"),
    [(0.0, 200, 100), (0.0455, 200, 95), (0.5, 21, 5), (1.0, 200, 0), (1e-30, 7, 3)],
)
def test_switch_round_by_hand(mpo, rounds, expected):
    assert switch_round(mpo, rounds) == expected


def test_components_equal_those_of_a_plain_pca(monkeypatch):
    monkeypatch.setattr("rdpcfl_tff.clustering.mixture._BLOCK_COLUMNS", 17)
    updates = np.random.default_rng(3).standard_normal((7, 50)).astype(np.float32) + 5
    centred = updates - updates.astype(np.float64).mean(axis=0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)

    components = principal_components(updates)

    np.testing.assert_allclose(components.eigenvalues, singular[:6] ** 2, rtol=1e-10)
    np.testing.assert_allclose(
        np.abs(components.coordinates), np.abs(left[:, :6] * singular[:6]), atol=1e-9
    )
    for axis in components.coordinates.T:
        assert axis[np.abs(axis).argmax()] > 0


def test_components_take_no_second_copy_of_the_updates():
    updates = np.random.default_rng(0).standard_normal((21, 500_000), dtype=np.float32)
    tracemalloc.start()
    principal_components(updates)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < updates.nbytes / 1.5


def test_the_learning_rate_cancels():
    updates, _ = clustered_updates((3, 4, 5), distance=20)
    for mixture, scaled in zip(
        both_mixtures(updates, 3), both_mixtures(updates * np.float32(2**-30), 3), strict=True
    ):
        # A power of two changes no bit of a mantissa, so that nothing at all may change.
        np.testing.assert_array_equal(mixture.coordinates, scaled.coordinates)
        np.testing.assert_array_equal(mixture.responsibilities, scaled.responsibilities)
        assert mixture.mss == scaled.mss
    for mixture, scaled in zip(
        both_mixtures(updates, 3), both_mixtures(updates * np.float32(5e-4), 3), strict=True
    ):
        assert mixture.mss == pytest.approx(scaled.mss, rel=1e-4)


def test_both_mixtures_are_deterministic():
    updates, _ = clustered_updates((4, 4, 4), distance=6)
    for first, second in zip(both_mixtures(updates, 3), both_mixtures(updates, 3), strict=True):
        np.testing.assert_array_equal(first.responsibilities, second.responsibilities)
        np.testing.assert_array_equal(first.separation_scores, second.separation_scores)


def test_both_mixtures_find_separated_clusters():
    updates, truth = clustered_updates((3, 6, 6), distance=60)
    for mixture, name in zip(both_mixtures(updates, 3), ("paper", "default"), strict=True):
        assert mixture.space.name == name
        assert mixture.space.dimensions == mixture.coordinates.shape[1] == 2
        assert mixture.converged
        assert match_partition(mixture.partition, truth).exact
        np.testing.assert_allclose(mixture.responsibilities.sum(axis=1), 1)
        np.testing.assert_allclose(sorted(mixture.weights), np.array([3, 6, 6]) / 15, atol=1e-3)
        assert mixture.mss == mixture.separation_scores.min() > 5
        assert mixture.mpo == pytest.approx(2 * norm.sf(mixture.mss))


def test_spaces_are_scaled_as_they_say():
    updates, _ = clustered_updates((3, 6, 6, 6), distance=30)
    paper, default = both_mixtures(updates, 4)
    np.testing.assert_allclose(paper.coordinates.min(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(paper.coordinates.max(axis=0), 1)
    assert default.coordinates.shape == (21, 3)
    assert default.coordinates.var(axis=0).sum() == pytest.approx(1)


def test_default_estimates_the_noise_without_bias():
    """Along the axes of well separated clusters, the variance is that of one coordinate's noise."""
    estimates = []
    for seed in range(20):
        updates, _ = clustered_updates((3, 6, 6, 6), distance=1000, seed=seed)
        components = principal_components(updates)
        mixture = default_mixture(components, 4)
        scale = components.eigenvalues[:3].sum() / 21
        assert mixture.space.dimensions == 3
        within = np.square(mixture.coordinates - mixture.means[mixture.partition]).sum()
        estimates.append(within * scale / (3 * (21 - 4)))
        # The next axis stands out of the noise by chance, and the mixture is as wide as that.
        assert mixture.variances[0] * scale >= estimates[-1] * (1 - 1e-6)
    assert np.mean(estimates) == pytest.approx(1, abs=0.1)


def test_default_is_as_wide_as_the_axis_it_does_not_use():
    """Three clusters, two of which coincide on the first axis, are not two sharp clusters."""
    axes = np.zeros((6, 5))
    axes[:, 0] = [-20, -20, 10, 10, 10, 10]
    axes[:, 1] = [0, 0, 3, 3, -3, -3]
    components = PrincipalComponents(np.square(axes).sum(axis=0), axes)
    # On the axis in use the clusters have no width. On the next the sum of squares is 36, over
    # 6 - 2 degrees of freedom: sigma is 3.
    assert default_mixture(components, 2).mss == pytest.approx(30 / (2 * 3), rel=1e-4)
    assert default_mixture(components, 3).mss > 1000


def test_default_by_hand():
    """Four clients in two pairs on one axis, and nothing that stands out on the others."""
    axes = np.zeros((4, 3))
    axes[:, 0] = [-11, -9, 9, 11]
    components = PrincipalComponents(np.square(axes).sum(axis=0), axes)
    # The scatter is 4, over 4 - 2 degrees of freedom: sigma^2 is 2.
    assert default_mixture(components, 2).mss == pytest.approx(20 / (2 * math.sqrt(2)))


def test_axes_count_by_their_share_of_signal_by_hand():
    """Sums of squares of 400, 100 and 25 where noise alone has 25."""
    np.testing.assert_allclose(
        signal_shares(np.array([400.0, 100.0, 25.0]), 25), [15 / 16, 3 / 4, 0], atol=1e-15
    )
    np.testing.assert_array_equal(signal_shares(np.array([4.0, 0.0]), 0), [1, 1])


def noisy_updates(points, num_parameters, seed):
    """Points [n, d], with standard normal noise in them and in so many coordinates more."""
    generator = np.random.default_rng(seed)
    noisy = points + generator.standard_normal(points.shape)
    return np.hstack([noisy, noise_alone(generator, len(points), num_parameters)])


def test_shrunk_axes_have_the_same_noise():
    """A strong axis, a middling and a weak one, in the many dimensions of a large model."""
    truth = np.repeat(np.arange(4), 50)
    centres = np.array([[-1, -1, 1], [-1, 1, -1], [1, -1, -1], [1, 1, 1]]) * [100.0, 40.0, 20.0]
    components = principal_components(noisy_updates(centres[truth], 2**18, seed=0))

    def noise_of_each_axis(coordinates):
        within = [coordinates[truth == m].var(axis=0, ddof=1) for m in range(4)]
        return np.sqrt(np.mean(within, axis=0))

    before = noise_of_each_axis(components.coordinates[:, :3])
    # An axis with centres at +-a has signal 200 a^2 of 200 a^2 + 2^18: the noise is its inverse.
    np.testing.assert_allclose(before, [1.13, 1.82, 4.28], rtol=0.1)
    after = noise_of_each_axis(default_mixture(components, 4).coordinates)
    np.testing.assert_allclose(after, after.mean(), rtol=0.1)


def test_an_axis_of_noise_does_not_hide_the_clusters():
    """Four clusters in a plane, where the third axis has nothing to tell."""
    truth = np.repeat(np.arange(4), [3, 6, 6, 6])
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) * 35.0
    exact = []
    for seed in range(20):
        components = principal_components(noisy_updates(corners[truth], 2**18, seed))
        partition = default_mixture(components, 4).partition
        exact.append(match_partition(partition.tolist(), truth.tolist()).exact)
    assert np.mean(exact) >= 0.9, "without shrinking it is 7 of 20"


def test_default_responsibilities_are_the_posterior():
    updates, _ = clustered_updates((3, 9), distance=6)
    mixture = default_mixture(principal_components(updates), 2)
    assert 0.01 < np.sort(mixture.responsibilities, axis=1)[:, 0].max() < 0.49  # they overlap
    densities = mixture.weights * np.prod(
        norm.pdf(
            mixture.coordinates[:, np.newaxis],
            mixture.means,
            np.sqrt(mixture.variances)[:, np.newaxis],
        ),
        axis=-1,
    )
    np.testing.assert_allclose(
        mixture.responsibilities, densities / densities.sum(axis=1, keepdims=True), atol=1e-9
    )


def test_singletons_do_not_collapse_the_default_mixture():
    """More components than clusters: two clients get a component each, and no false confidence."""
    updates, _ = clustered_updates((5, 5), distance=200, num_parameters=200)
    right, wrong = both_mixtures(updates, 2)[1], both_mixtures(updates, 5)[1]
    assert np.bincount(wrong.partition, minlength=5).min() == 1
    np.testing.assert_array_equal(wrong.variances, wrong.variances[0])
    assert wrong.mss < 3 < 20 < right.mss


@pytest.mark.parametrize("num_clusters", [0, 1, 6, 7])
def test_impossible_numbers_of_clusters(num_clusters):
    components = principal_components(clustered_updates((3, 3), distance=5)[0])
    with pytest.raises(UserError, match=f"--num_clusters={num_clusters} does not fit 6 clients"):
        default_mixture(components, num_clusters)
    with pytest.raises(UserError, match="from 2 to 5 clusters"):
        paper_mixture(components, num_clusters, seed=0)


def test_equal_updates_cannot_be_clustered():
    with pytest.raises(UserError, match="all equal"):
        principal_components(np.ones((4, 10), np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_diverged_updates_cannot_be_clustered(value):
    updates = np.ones((4, 10), np.float32)
    updates[1, 2] = value
    with pytest.raises(UserError, match="not finite"):
        principal_components(updates)
