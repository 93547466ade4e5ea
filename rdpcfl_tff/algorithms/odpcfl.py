"""O-DPCFL: the oracle that knows the true clusters from the first round (the paper's upper bound).

It can run in a simulation only, because the true clusters are what nobody knows.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rdpcfl_tff.algorithms.base import State
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy.accounting import Schedule


@dataclasses.dataclass(frozen=True)
class ODPCFL:
    """DP-SGD in the true clusters, and an average inside each after every round.

    Attributes:
        true_clusters: s(i), the cluster of each client.
        rounds: E.
        local_epochs: K.
        batch_size: b.
    """

    true_clusters: Sequence[int]
    rounds: int
    local_epochs: int
    batch_size: int

    def schedule(self, records: int) -> Schedule:
        """The same batch size in every round, and no selection to pay for."""
        return Schedule(
            records=records,
            rounds=self.rounds,
            batch_size=self.batch_size,
            first_batch_size=self.batch_size,
            local_epochs=self.local_epochs,
        )

    def first_round(self, federation: Federation) -> State:
        """All cluster models start from theta_init."""
        num_clusters = max(self.true_clusters) + 1
        start = State(
            round_number=0,
            stage="fixed clusters",
            models=np.tile(federation.initial_parameters, (num_clusters, 1)),
            assignment=tuple(self.true_clusters),
        )
        return self.next_round(start, federation)

    def next_round(self, state: State, federation: Federation) -> State:
        """Every client trains the model of its true cluster."""
        round_number = state.round_number + 1
        return dataclasses.replace(
            state,
            round_number=round_number,
            models=federation.train(state.models, state.assignment, round_number),
        )
