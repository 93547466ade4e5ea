"""O-DPCFL: the oracle that knows the true clusters from the first round (the paper's upper bound).

It can run in a simulation only, because the true clusters are what nobody knows.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rdpcfl_tff.algorithms.base import LocalTraining, State, train_fixed_clusters
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy.accounting import Schedule


@dataclasses.dataclass(frozen=True)
class ODPCFL:
    """DP-SGD in the true clusters, and an average inside each after every round.

    Attributes:
        training: The local training.
        true_clusters: s(i), the cluster of each client.
    """

    training: LocalTraining
    true_clusters: Sequence[int]

    def schedule(self, records: int) -> Schedule:
        """Rounds that are all alike, and no selection to pay for."""
        return self.training.schedule(records)

    def first_round(self, federation: Federation) -> State:
        """All cluster models start from theta_init."""
        num_clusters = max(self.true_clusters) + 1
        models = np.tile(federation.initial_parameters, (num_clusters, 1))
        start = State(0, "fixed clusters", models, tuple(self.true_clusters))
        return train_fixed_clusters(start, federation)

    def next_round(self, state: State, federation: Federation) -> State:
        """Every client trains the model of its true cluster."""
        return train_fixed_clusters(state, federation)
