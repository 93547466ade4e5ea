from rdpcfl_tff.clustering.matching import TrueCluster, match_partition

TRUTH = [0, 0, 1, 1, 1, 2, 2, 2]


def test_other_names_for_the_same_clusters():
    match = match_partition([7, 7, 0, 0, 0, 3, 3, 3], TRUTH)
    assert match.exact
    assert match.misplaced == 0
    assert match.minority_found
    assert match.clusters[0] == TrueCluster(cluster=0, size=2, matched=7, hits=2, found=True)


def test_one_client_in_the_wrong_cluster():
    match = match_partition([1, 1, 0, 0, 2, 2, 2, 2], TRUTH)
    assert not match.exact
    assert match.misplaced == 1
    assert match.minority_found
    assert [cluster.found for cluster in match.clusters] == [True, False, False]
    assert [cluster.hits for cluster in match.clusters] == [2, 2, 3]


def test_a_cluster_that_swallowed_the_minority():
    match = match_partition([1, 1, 1, 1, 1, 2, 2, 2], TRUTH)
    assert match.misplaced == 2
    assert not match.minority_found
    assert match.clusters[0] == TrueCluster(cluster=0, size=2, matched=None, hits=0, found=False)


def test_a_cluster_split_in_two():
    match = match_partition([0, 0, 1, 1, 1, 2, 2, 3], TRUTH)
    assert not match.exact
    assert match.misplaced == 1
    assert [cluster.found for cluster in match.clusters] == [True, True, False]


def test_several_smallest_clusters_must_all_be_found():
    assert not match_partition([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2]).minority_found
    assert match_partition([0, 0, 0, 1, 2, 2], [0, 0, 0, 1, 1, 1]).minority_found is False
    assert match_partition([0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2]).minority_found
