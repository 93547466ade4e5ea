"""The contract of an algorithm: who trains which model in the next round.

An algorithm is an assignment policy over one shared federated round. Everything in its state is
known to the server, and so must have left the clients noised.
"""

import dataclasses
from typing import Protocol

import numpy as np

from rdpcfl_tff.clustering.confidence import Confidence
from rdpcfl_tff.clustering.count import ClusterCount
from rdpcfl_tff.clustering.mixture import Mixture, PrincipalComponents
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy.accounting import Schedule


@dataclasses.dataclass(frozen=True)
class Clustering:
    """What the server made of the updates of round 1.

    Attributes:
        updates: The noised updates, float32 [n, p]; NaN for a client that sent none.
        components: The principal components of those that came.
        count: How many clusters there are, and the evidence.
        mixture: The fitted mixture; None if all clients are taken for one cluster.
        responsibilities: pi, the posterior over clusters of each client, [n, M].
        switch_round: E_c, the last round that draws clusters from the posterior.
    """

    updates: np.ndarray
    components: PrincipalComponents
    count: ClusterCount
    mixture: Mixture | None
    responsibilities: np.ndarray
    switch_round: int

    @property
    def confidence(self) -> Confidence:
        """How far to trust it."""
        mss = None if self.mixture is None else self.mixture.mss
        missing = np.flatnonzero(np.isnan(self.updates[:, 0]))
        return Confidence(self.count, mss, self.responsibilities, tuple(missing.tolist()))


@dataclasses.dataclass(frozen=True)
class State:
    """What the server holds after a round.

    Attributes:
        round_number: e, the rounds that are done.
        stage: What kind of round the last one was, in the paper's words.
        models: The cluster models, float32 [M, p].
        assignment: R(i), the model that each client trained last.
        clustering: What came out of round 1, for algorithms that cluster there.
    """

    round_number: int
    stage: str
    models: np.ndarray
    assignment: tuple[int, ...]
    clustering: Clustering | None = None


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """What the local training of all rounds has in common.

    Attributes:
        rounds: E.
        local_epochs: K.
        batch_size: b.
    """

    rounds: int
    local_epochs: int
    batch_size: int

    def schedule(
        self,
        records: int,
        first_batch_size: int | None = None,
        selections: int = 0,
        epsilon_select: float = 0.0,
    ) -> Schedule:
        """What a client with so many train records does in all rounds; this is accounted."""
        return Schedule(
            records=records,
            rounds=self.rounds,
            batch_size=self.batch_size,
            first_batch_size=first_batch_size or self.batch_size,
            local_epochs=self.local_epochs,
            selections=selections,
            epsilon_select=epsilon_select,
        )


class Algorithm(Protocol):
    """One of the paper's algorithms."""

    def schedule(self, records: int) -> Schedule:
        """All that a client with so many train records does with them; this is accounted."""
        ...

    def first_round(self, federation: Federation) -> State:
        """The state after round 1."""
        ...

    def next_round(self, state: State, federation: Federation) -> State:
        """The state after one more round; the same state always gives the same next one."""
        ...


def train_fixed_clusters(state: State, federation: Federation) -> State:
    """One more round in which every client trains the model that it has."""
    round_number = state.round_number + 1
    return dataclasses.replace(
        state,
        round_number=round_number,
        models=federation.train(state.models, state.assignment, round_number),
    )
