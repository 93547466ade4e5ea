"""The forecast's model of round 1, against draws in all p coordinates and against its formulas."""

import numpy as np
import pytest

from rdpcfl_tff.clustering import forecast
from rdpcfl_tff.clustering.forecast import Signal
from rdpcfl_tff.clustering.mixture import principal_components
from rdpcfl_tff.errors import UserError

CLUSTERS = np.repeat(np.arange(3), (2, 3, 4))


def full_updates(signal, records, noise, num_parameters, generator):
    """The model as docs/plan.md states it, coordinate by coordinate."""
    axes, rank = signal.centres.shape[1], signal.spread_rank
    variances = np.zeros(num_parameters)
    variances[:axes] = signal.spread_along / records
    variances[axes : axes + rank] = signal.spread / rank / records
    updates = generator.standard_normal((len(CLUSTERS), num_parameters))
    updates *= np.sqrt(variances + noise**2)
    updates[:, :axes] += signal.centres[CLUSTERS]
    return updates


def squared_distances(updates):
    difference = updates[:, np.newaxis] - updates
    return np.square(difference).sum(axis=-1)[np.triu_indices(len(updates), 1)]


def test_drawn_distances_are_those_of_all_coordinates():
    signal = Signal(Signal.from_distance(1.0, 3).centres, 1.0, 5, 0.1)
    settings = {"records": 4, "noise": 0.1, "num_parameters": 60}
    generator = np.random.default_rng(0)
    draws = 4000
    small, full = (
        np.array([squared_distances(draw()) for _ in range(draws)])
        for draw in (
            lambda: forecast.draw_updates(signal, CLUSTERS, generator=generator, **settings),
            lambda: full_updates(signal, generator=generator, **settings),
        )
    )
    error = np.sqrt(2 * full.var(axis=0) / draws)
    assert np.all(np.abs(small.mean(axis=0) - full.mean(axis=0)) < 4.5 * error)
    np.testing.assert_allclose(small.std(axis=0), full.std(axis=0), rtol=0.06)
    # Distances that share a client depend on each other, and clustering lives on it.
    np.testing.assert_allclose(np.corrcoef(small.T), np.corrcoef(full.T), atol=0.08)


def test_noise_in_all_coordinates_blurs_the_leading_ones_as_derived():
    # docs/plan.md: std^2 = s^2 (1 + p s^2 / lambda) along an axis with eigenvalue lambda.
    distance, noise, num_parameters = 1.0, 0.05, 20_000
    clusters = np.repeat([0, 1], 20)
    signal = Signal(Signal.from_distance(distance, 2).centres, 0.0, 1, 0.0)
    generator = np.random.default_rng(1)
    variances = []
    for _ in range(200):
        updates = forecast.draw_updates(signal, clusters, 1, noise, num_parameters, generator)
        leading = principal_components(updates).coordinates[:, 0]
        centres = np.array([leading[clusters == m].mean() for m in (0, 1)])
        scale = distance / np.abs(np.diff(centres))
        variances.append(np.square((leading - centres[clusters]) * scale).sum() / 38)
    eigenvalue = 40 * (distance / 2) ** 2
    expected = noise**2 * (1 + num_parameters * noise**2 / eigenvalue)
    assert expected > 5 * noise**2
    assert np.mean(variances) == pytest.approx(expected, rel=0.1)


def test_a_signal_is_measured_without_the_error_of_its_sample():
    truth = Signal(Signal.from_distance(0.1, 4).centres, 1.0, 12, 0.004)
    clusters = np.repeat(np.arange(4), 12)
    generator = np.random.default_rng(2)
    measured = [
        Signal.measured(
            forecast.draw_updates(truth, clusters, 512, 0.0, 1000, generator), clusters, 512
        )
        for _ in range(30)
    ]
    assert np.mean([one.distance for one in measured]) == pytest.approx(0.1, rel=0.05)
    assert np.mean([one.spread for one in measured]) == pytest.approx(1.0, rel=0.05)
    assert np.mean([one.spread_rank for one in measured]) == pytest.approx(12, rel=0.1)
    # Few centres point a little into the directions of the spread, so this is an upper bound.
    assert 0.004 < np.mean([one.spread_along for one in measured]) < 0.01


@pytest.mark.parametrize("num_clusters", [2, 5])
def test_all_clusters_of_a_given_distance_are_so_far_apart(num_clusters):
    centres = Signal.from_distance(0.3, num_clusters).centres
    assert centres.shape == (num_clusters, num_clusters - 1)
    np.testing.assert_allclose(squared_distances(centres), 0.09)


def test_little_noise_finds_the_clusters_and_much_noise_does_not():
    signal = Signal.from_distance(forecast.MNIST_DISTANCE, 4)
    quiet, loud = (
        forecast.forecast(signal, (3, 6, 6, 6), 2000, z / 2000, 28_938) for z in (1.0, 30.0)
    )
    assert quiet.exact == 1.0 and quiet.mss > 4
    assert loud.exact == 0.0 and loud.mss < 2
    assert quiet == forecast.forecast(signal, (3, 6, 6, 6), 2000, 1 / 2000, 28_938)


def test_few_records_hide_the_clusters_without_any_noise():
    signal = Signal.from_distance(forecast.MNIST_DISTANCE, 4)
    few, many = (
        forecast.forecast(signal, (6,) * 4, records, 1e-9, 28_938) for records in (20, 2000)
    )
    assert (few.exact, many.exact) == (0.0, 1.0)


@pytest.mark.parametrize("distance", [0.0, -0.1, 2.1, float("nan")])
def test_an_impossible_distance_is_refused(distance):
    with pytest.raises(UserError, match="--signal"):
        Signal.from_distance(distance, 3)
