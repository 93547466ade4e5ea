"""What the user is told about round 1."""

import numpy as np
import pytest

from rdpcfl_tff.clustering.confidence import Confidence
from rdpcfl_tff.clustering.count import Candidate, ClusterCount


def confidence(p_value=0.005, responsibilities=None, mss=5.0):
    count = ClusterCount((Candidate(2, 4.0, 5.0, 2.0),), 2, 2, p_value)
    if responsibilities is None:
        responsibilities = [[1.0, 0.0], [0.0, 1.0], [0.01, 0.99]]
    return Confidence(count, mss, np.array(responsibilities))


def test_clear_clusters_are_sure():
    clear = confidence()
    assert clear.sure
    assert clear.words.splitlines() == [
        "round 1: 2 clusters of 1, 2 clients, MSS 5.00",
        "sure: 2 clusters detected: at most 0.5% of federations without clusters look as well "
        "separated (the null: clients whose updates differ by noise alone, drawn 199 times)",
        "ambiguous clients, with a posterior below 0.9: none",
    ]


def test_a_client_between_two_clusters_is_named():
    between = confidence(responsibilities=[[1.0, 0.0], [0.3, 0.7], [0.0, 1.0], [0.85, 0.15]])
    assert not between.sure
    assert between.ambiguous_clients == [1, 3]
    assert "below 0.9: 1 (0.70), 3 (0.85)" in between.words


def test_a_client_that_was_not_there_is_no_doubt():
    posteriors = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    missing = Confidence(confidence().count, 5.0, posteriors, missing_clients=(1,))
    assert missing.sure and missing.ambiguous_clients == []
    assert "no update from clients 1" in missing.words


@pytest.mark.parametrize("mss", [2.0, None])
def test_doubt_comes_with_advice(mss):
    doubtful = confidence(p_value=0.3, mss=mss)
    assert not doubtful.sure
    words = doubtful.words
    assert "NOT sure: no cluster structure detected: 30.0% of federations" in words
    for advice in ("more records", "smaller --batch_size", "larger --eps", "experiments.plan"):
        assert advice in words
    assert ("taken for one cluster" in words) == (mss is None)
