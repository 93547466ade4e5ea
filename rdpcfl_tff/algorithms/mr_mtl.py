"""MR-MTL: personal models with a pull to their mean (the paper's appendix; Liu et al., 2022).

Client i minimises f_i(theta_i) + lambda/2 |theta_i - mean|^2. The pull lambda (theta_i - mean) is
added to the noised gradient: it depends on no record of the step, so it is post-processing and
free. The mean is the server's average of the noised models.
"""

import dataclasses

import numpy as np

from rdpcfl_tff.algorithms.base import LocalTraining, State
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy.accounting import Schedule


@dataclasses.dataclass(frozen=True)
class MRMTL:
    """Every client keeps a model of its own.

    Attributes:
        training: The local training.
        pull: lambda; 0 is `Local`.
        clip_pull: Whether the pull is part of every gradient that is clipped, as Liu et al. have
            it. It then costs some of the clip norm.
    """

    training: LocalTraining
    pull: float
    clip_pull: bool = False

    def schedule(self, records: int) -> Schedule:
        """Rounds that are all alike, and no selection to pay for."""
        return self.training.schedule(records)

    def first_round(self, federation: Federation) -> State:
        """All personal models start from theta_init."""
        models = np.tile(federation.initial_parameters, (federation.num_clients, 1))
        start = State(0, "personal models", models, tuple(range(federation.num_clients)))
        return self.next_round(start, federation)

    def next_round(self, state: State, federation: Federation) -> State:
        """Every client trains its own model, pulled to the mean of all of them."""
        round_number = state.round_number + 1
        mean = state.models.mean(axis=0)
        models = federation.train_personal(
            state.models, mean, self.pull, round_number, self.clip_pull
        )
        return dataclasses.replace(state, round_number=round_number, models=models)
