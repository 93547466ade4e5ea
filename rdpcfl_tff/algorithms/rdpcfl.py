"""R-DPCFL: the paper's algorithm (Algorithm 1), in its three stages.

1. Round 1: every client trains theta_init on a full batch; the server fits a mixture on the
   updates, and goes back to theta_init.
2. Rounds 2 to E_c: each client's cluster is drawn anew from the mixture's posterior.
3. The next floor(E/10) rounds: each client selects its cluster privately. Then clusters are fixed.
The server sees noised updates and private selections only; all that it does is post-processing.
"""

import dataclasses

import numpy as np

from rdpcfl_tff.algorithms.base import Clustering, LocalTraining, State, train_fixed_clusters
from rdpcfl_tff.clustering import count, mixture
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy import randomness
from rdpcfl_tff.privacy.accounting import Schedule


@dataclasses.dataclass(frozen=True)
class RDPCFL:
    """The algorithm's own settings.

    Attributes:
        training: The local training from round 2 on.
        first_batch_size: b1, in round 1; None for a full batch.
        num_clusters: M; None searches it among `candidates`.
        candidates: Where M is searched.
        mixture_mode: "default", or "paper" for the mixture and the choices of the authors' code.
        selection_rounds: How many rounds begin with a private selection.
        epsilon_select: The pure-DP epsilon of one selection.
        seed: Of the server's own draws.
    """

    training: LocalTraining
    first_batch_size: int | None
    num_clusters: int | None
    candidates: tuple[int, ...]
    mixture_mode: str
    selection_rounds: int
    epsilon_select: float
    seed: int

    def schedule(self, records: int) -> Schedule:
        """A full first batch, small batches after it, and the selections."""
        return self.training.schedule(
            records,
            first_batch_size=self.first_batch_size or records,
            selections=self.selection_rounds,
            epsilon_select=self.epsilon_select,
        )

    def first_round(self, federation: Federation) -> State:
        """Stage 1: the clients' updates of theta_init, and a mixture on them."""
        updates = federation.updates(federation.initial_parameters, round_number=1)
        clustering = self.cluster(updates, federation.plan.noise_of_updates(round_number=1))
        num_models = clustering.responsibilities.shape[1]
        return State(
            round_number=1,
            stage="clustering",
            models=np.tile(federation.initial_parameters, (num_models, 1)),
            assignment=tuple(int(m) for m in clustering.responsibilities.argmax(axis=1)),
            clustering=clustering,
        )

    def next_round(self, state: State, federation: Federation) -> State:
        """Stages 2 and 3: find each client's cluster, and train its model there."""
        assert state.clustering is not None
        round_number = state.round_number + 1
        switch_round = state.clustering.switch_round
        assignment = state.assignment
        if len(state.models) == 1:
            stage = "one model"
        elif round_number <= switch_round:
            stage = "soft clustering"
            assignment = self._draw(state.clustering.responsibilities, round_number)
        elif round_number <= switch_round + self.selection_rounds:
            stage = "private selection"
            assignment = federation.select(state.models, assignment, round_number)
        else:
            stage = "fixed clusters"
        state = dataclasses.replace(state, stage=stage, assignment=assignment)
        return train_fixed_clusters(state, federation)

    def cluster(self, updates: np.ndarray, noise: np.ndarray | None = None) -> Clustering:
        """The number of clusters, the mixture, and the round to trust it until.

        A client that sent no update has the clusters' sizes for its posterior. The noise is that
        of each client's update; the paper's mixture makes no use of it.
        """
        paper = self.mixture_mode == "paper"
        came = np.isfinite(updates).all(axis=1)
        candidates = tuple(m for m in self.candidates if m <= came.sum() - 2 or came.all())
        if not candidates:
            raise UserError(
                f"only {came.sum()} of {len(updates)} clients sent a sound update in round 1, too "
                "few to cluster: run again when more of them are there (or lower --lr)"
            )
        if noise is not None:
            noise = None if paper or np.ptp(noise) == 0 else noise[came]
        components = mixture.principal_components(updates[came], noise)
        counted = count.count_clusters(components, candidates, self.seed)
        num_clusters = self.num_clusters
        if num_clusters is None:
            num_clusters = counted.paper_choice if paper else counted.default_choice
            if not paper and not counted.detected:
                num_clusters = 1
        if num_clusters == 1:
            certain = np.ones((len(updates), 1))
            return Clustering(updates, components, counted, None, certain, self.training.rounds)
        if paper:
            fitted = mixture.paper_mixture(components, num_clusters, self.seed)
            uncertainty = fitted.mpo
        else:
            fitted = mixture.default_mixture(components, num_clusters)
            uncertainty = counted.uncertainty(fitted.mpo)
        switch_round = mixture.switch_round(uncertainty, self.training.rounds)
        responsibilities = np.tile(fitted.responsibilities.mean(axis=0), (len(updates), 1))
        responsibilities[came] = fitted.responsibilities
        return Clustering(updates, components, counted, fitted, responsibilities, switch_round)

    def _draw(self, responsibilities: np.ndarray, round_number: int) -> tuple[int, ...]:
        """R(i) = m with probability pi_i[m], for every client i."""
        seed = randomness.stream_seed(
            randomness.run_key(self.seed), randomness.Purpose.ASSIGNMENT, round=round_number
        )
        generator = np.random.default_rng([word % 2**32 for word in seed])
        # Clients whose uniform number lies below the first m cumulated posteriors get cluster m.
        uniform = generator.random((len(responsibilities), 1))
        cumulated = np.cumsum(responsibilities, axis=1)
        return tuple(int(m) for m in (uniform * cumulated[:, -1:] >= cumulated).sum(axis=1))
