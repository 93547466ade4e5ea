import types

import numpy as np
import pytest

from rdpcfl_tff.clustering import count
from rdpcfl_tff.clustering.count import (
    Candidate,
    ClusterCount,
    count_clusters,
    noise_alone,
    null_mss,
)
from rdpcfl_tff.clustering.mixture import default_mixture, paper_mixture, principal_components
from rdpcfl_tff.errors import UserError
from tests.clustering.example_updates import clustered_updates


@pytest.mark.parametrize("sizes", [(6, 6), (4, 4, 4), (2, 5, 5), (2, 3, 3, 4)])
def test_finds_the_number_of_clusters(sizes):
    components = principal_components(clustered_updates(sizes, distance=60)[0])
    result = count_clusters(components, range(2, 6), seed=0)
    assert result.default_choice == len(sizes)
    assert result.detected
    assert result.p_value == 1 / (count.NULL_FEDERATIONS + 1)
    assert result.sentence.startswith(f"{len(sizes)} clusters detected")


def test_table_holds_all_scores():
    components = principal_components(clustered_updates((6, 6), distance=30)[0])
    result = count_clusters(components, [4, 2, 3, 3], seed=5)
    assert [row.num_clusters for row in result.candidates] == [2, 3, 4]
    for row in result.candidates:
        assert row.paper_mss == paper_mixture(components, row.num_clusters, seed=5).mss
        assert row.default_mss == default_mixture(components, row.num_clusters).mss
        null = null_mss(12, (2, 3, 4), 5)[:, row.num_clusters - 2]
        assert np.mean(null < row.null_mss) == pytest.approx(0.95, abs=1 / count.NULL_FEDERATIONS)
    paper_best = max(result.candidates, key=lambda row: row.paper_mss)
    assert result.paper_choice == paper_best.num_clusters
    assert result.default_choice == 2 != result.paper_choice
    assert result == count_clusters(components, [2, 3, 4], seed=5)


def test_p_values_are_uniform_where_there_are_no_clusters():
    generator = np.random.default_rng(1)
    p_values = []
    for _ in range(60):
        updates = generator.standard_normal((12, 1000), dtype=np.float32)
        p_values.append(count_clusters(principal_components(updates), [2, 3, 4], seed=0).p_value)
    # Four standard errors around the values of the uniform distribution.
    assert np.mean(p_values) == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / 60))
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 60)
    assert np.mean(np.array(p_values) <= 0.5) == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 60))


def test_says_so_when_there_are_no_clusters():
    updates = np.random.default_rng(0).standard_normal((12, 1000), dtype=np.float32)
    result = count_clusters(principal_components(updates), [2, 3, 4], seed=0)
    assert not result.detected
    assert result.sentence.startswith("no cluster structure detected: ")
    assert f"{result.p_value:.1%}" in result.sentence


def test_uncertainty_listens_to_the_null():
    table = (Candidate(2, 1.0, 1.0, 2.0),)
    assert ClusterCount(table, 2, 2, p_value=0.05).uncertainty(0.001) == 0.001
    assert ClusterCount(table, 2, 2, p_value=0.6).uncertainty(0.001) == 0.6
    assert ClusterCount(table, 2, 2, p_value=0.6).uncertainty(0.7) == 0.7


def test_chooses_what_is_least_usual_without_clusters(monkeypatch):
    """An MSS of 3 is more for a number of clusters that has 1 in noise than one of 4 for 2."""
    scores, null = {2: 4.0, 3: 3.0}, {2: 2.0, 3: 1.0}
    monkeypatch.setattr(
        count, "null_mss", lambda *_: np.tile(list(null.values()), (count.NULL_FEDERATIONS, 1))
    )
    monkeypatch.setattr(
        count, "default_mixture", lambda _, number: types.SimpleNamespace(mss=scores[number])
    )
    components = principal_components(clustered_updates((3, 3), distance=5)[0])
    result = count_clusters(components, [2, 3], seed=0)
    assert [row.ratio for row in result.candidates] == [2.0, 3.0]
    assert result.default_choice == 3


def test_null_depends_on_its_arguments_only():
    first = null_mss.__wrapped__(9, (2, 3), 0)
    np.testing.assert_array_equal(first, null_mss(9, (2, 3), 0))
    assert not np.array_equal(first, null_mss(9, (2, 3), 1))
    assert first.shape == (count.NULL_FEDERATIONS, 2)
    np.testing.assert_array_equal(first[:, :1], null_mss(9, (2,), 0))


def test_noise_alone_has_the_gram_matrix_of_noise_in_many_dimensions():
    num_clients, num_parameters, draws = 4, 50, 3000
    generator = np.random.default_rng(0)

    def grams(draw):
        return np.array([points @ points.T for points in (draw() for _ in range(draws))])

    short = grams(lambda: noise_alone(generator, num_clients, num_parameters))
    long = grams(lambda: generator.standard_normal((num_clients, num_parameters)))
    # Four standard errors, of a difference of two means whose variance is at most 2 p.
    error = 4 * np.sqrt(2 * 2 * num_parameters / draws)
    np.testing.assert_allclose(short.mean(axis=0), long.mean(axis=0), atol=error)
    np.testing.assert_allclose(short.std(axis=0), long.std(axis=0), rtol=0.1)


def test_no_candidates():
    components = principal_components(clustered_updates((3, 3), distance=5)[0])
    with pytest.raises(UserError, match="name at least one"):
        count_clusters(components, [], seed=0)
