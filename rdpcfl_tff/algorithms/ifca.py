"""DP-IFCA: clients choose among M models by their accuracy, privately (Ghosh et al., 2020).

As Liu et al. (2022) run it, and the paper after them: M independent initial models, a private
selection at the start of each of the first floor(E/10) rounds, then the clusters are fixed.
"""

import dataclasses

import numpy as np

from rdpcfl_tff.algorithms.base import LocalTraining, State, train_fixed_clusters
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy.accounting import Schedule


@dataclasses.dataclass(frozen=True)
class IFCA:
    """The algorithm's own settings.

    Attributes:
        training: The local training.
        initial_models: M models, each with initial weights of its own, [M, p].
        selection_rounds: How many rounds begin with a private selection.
        epsilon_select: The pure-DP epsilon of one selection.
    """

    training: LocalTraining
    initial_models: np.ndarray
    selection_rounds: int
    epsilon_select: float

    def schedule(self, records: int) -> Schedule:
        """Rounds that are all alike, and the selections."""
        return self.training.schedule(
            records, selections=self.selection_rounds, epsilon_select=self.epsilon_select
        )

    def first_round(self, federation: Federation) -> State:
        """The first selection is among models that nobody has trained."""
        nowhere = (0,) * federation.num_clients
        return self.next_round(State(0, "", self.initial_models, nowhere), federation)

    def next_round(self, state: State, federation: Federation) -> State:
        """Select, as long as selections are paid for; then train."""
        if state.round_number < self.selection_rounds:
            state = dataclasses.replace(
                state,
                stage="private selection",
                assignment=federation.select(
                    state.models, state.assignment, state.round_number + 1
                ),
            )
        else:
            state = dataclasses.replace(state, stage="fixed clusters")
        return train_fixed_clusters(state, federation)
