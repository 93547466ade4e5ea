"""A partition of the clients compared with the true clusters, whatever the clusters are called.

The paper's count of runs that "detect the underlying cluster structure", and its minority cluster.
True clusters are known to a simulation only: nothing here may run on a server.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment


@dataclasses.dataclass(frozen=True)
class TrueCluster:
    """What became of one true cluster.

    Attributes:
      cluster: its true label.
      size: its number of clients.
      matched: the label of the found cluster that stands for it, None if there is none left.
      hits: how many of its clients are in that found cluster.
      found: whether the found cluster has all of its clients and no others.
    """

    cluster: int
    size: int
    matched: int | None
    hits: int
    found: bool


@dataclasses.dataclass(frozen=True)
class Match:
    """A partition against the truth, labels matched so that the fewest clients are misplaced."""

    clusters: tuple[TrueCluster, ...]

    @property
    def exact(self) -> bool:
        """Whether the partition is the true one."""
        return all(cluster.found for cluster in self.clusters)

    @property
    def misplaced(self) -> int:
        """How many clients are not where the match wants them."""
        return sum(cluster.size - cluster.hits for cluster in self.clusters)

    @property
    def minority_found(self) -> bool:
        """Whether the smallest true cluster is found; all of them, if several are smallest."""
        smallest = min(cluster.size for cluster in self.clusters)
        return all(cluster.found for cluster in self.clusters if cluster.size == smallest)


def match_partition(partition: Sequence[int], truth: Sequence[int]) -> Match:
    """Compare a partition, one label per client, with the true labels of the same clients."""
    found_labels, found = np.unique(partition, return_inverse=True)
    true_labels, true = np.unique(truth, return_inverse=True)
    counts = np.zeros((len(true_labels), len(found_labels)), int)
    np.add.at(counts, (true, found), 1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    matched = dict(zip(rows.tolist(), columns.tolist(), strict=True))

    clusters = []
    for row, label in enumerate(true_labels):
        size, column = int(counts[row].sum()), matched.get(row)
        hits = 0 if column is None else int(counts[row, column])
        clusters.append(
            TrueCluster(
                cluster=int(label),
                size=size,
                matched=None if column is None else int(found_labels[column]),
                hits=hits,
                found=column is not None and hits == size == int(counts[:, column].sum()),
            )
        )
    return Match(tuple(clusters))
