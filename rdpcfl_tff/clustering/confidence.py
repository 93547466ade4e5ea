"""What round 1 found, how sure that is, and what to change if it is not, in words.

The paper's confidence is MSS, which never says "no clusters"; here it is held against a null.
Nothing is private: it is said of a mixture of noised updates (see `mixture.py`).
"""

import dataclasses

import numpy as np

from rdpcfl_tff.clustering.count import NULL_FEDERATIONS, ClusterCount

# A client is ambiguous if no cluster has more of its posterior.
AMBIGUOUS = 0.9

_ADVICE = (
    "what makes round 1 clearer: more records per client, a smaller --batch_size (above 1), a "
    "larger --eps, or less noise in round 1 (--first_round_noise_multiplier); python -m "
    "experiments.plan says how much of it"
)


@dataclasses.dataclass(frozen=True)
class Confidence:
    """How far the clusters of round 1 can be trusted.

    Attributes:
        count: The number of clusters, and the test against none.
        mss: The mixture's confidence; None if all clients are taken for one cluster.
        responsibilities: pi, the posterior over clusters of each client, [n, M].
        missing_clients: Those that sent no update, so that nothing can be said of them.
    """

    count: ClusterCount
    mss: float | None
    responsibilities: np.ndarray
    missing_clients: tuple[int, ...] = ()

    @property
    def ambiguous_clients(self) -> list[int]:
        """The clients that no cluster has for sure, of those that sent an update."""
        ambiguous = np.flatnonzero(self.responsibilities.max(axis=1) < AMBIGUOUS)
        return np.setdiff1d(ambiguous, self.missing_clients).tolist()

    @property
    def sure(self) -> bool:
        """Whether there are clusters, and everybody who was there is in one of them."""
        return self.count.detected and not self.ambiguous_clients

    @property
    def words(self) -> str:
        """For the run's user: a line for each thing to know."""
        num_clients, num_clusters = self.responsibilities.shape
        sizes = np.bincount(self.responsibilities.argmax(axis=1), minlength=num_clusters)
        found = f"round 1: {num_clusters} clusters of {', '.join(map(str, sizes))} clients"
        if self.mss is None:
            found = f"round 1: all {num_clients} clients are taken for one cluster"
        else:
            found += f", MSS {self.mss:.2f}"
        ambiguous = ", ".join(
            f"{client} ({self.responsibilities[client].max():.2f})"
            for client in self.ambiguous_clients
        )
        lines = [
            found,
            f"{'sure' if self.sure else 'NOT sure'}: {self.count.sentence} (the null: clients "
            f"whose updates differ by noise alone, drawn {NULL_FEDERATIONS} times)",
            f"ambiguous clients, with a posterior below {AMBIGUOUS:g}: {ambiguous or 'none'}",
        ]
        if self.missing_clients:
            lines.append(f"no update from clients {', '.join(map(str, self.missing_clients))}")
        if not self.sure:
            lines.append(_ADVICE)
        return "\n".join(lines)
