"""Global (DP-FedAvg): one model for all clients, the uniform average of their updates."""

import dataclasses

from rdpcfl_tff.algorithms.base import LocalTraining, State, train_fixed_clusters
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy.accounting import Schedule


@dataclasses.dataclass(frozen=True)
class Global:
    """Every client trains the same model."""

    training: LocalTraining

    def schedule(self, records: int) -> Schedule:
        """Rounds that are all alike, and no selection to pay for."""
        return self.training.schedule(records)

    def first_round(self, federation: Federation) -> State:
        """The model starts from theta_init."""
        models = federation.initial_parameters[None]
        start = State(0, "one model", models, (0,) * federation.num_clients)
        return train_fixed_clusters(start, federation)

    def next_round(self, state: State, federation: Federation) -> State:
        """Every client trains the model, and the server averages."""
        return train_fixed_clusters(state, federation)
