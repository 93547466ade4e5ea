"""The number of clusters M: the candidate whose mixture is the most confident, and is it real?

Implements the paper's appendix on the number of clusters (argmax of MSS), and what the paper lacks:
a comparison with clients that have no clusters. It tells whether there are any, and it makes the
MSS of different M comparable, since noise too looks better separated for some M than for others.
Nothing here is private (see `mixture.py`).
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from rdpcfl_tff.clustering.mixture import (
    PrincipalComponents,
    default_mixture,
    paper_mixture,
    principal_components,
)
from rdpcfl_tff.errors import UserError

# With the observed one they are 200, so that p-values are multiples of 0.005.
NULL_FEDERATIONS = 199
# Above this p-value the clusters are taken for noise.
SIGNIFICANCE = 0.05
# Of the null: so many more than there are clients that it does not depend on them.
_NULL_PARAMETERS = 2**24


@dataclasses.dataclass(frozen=True)
class Candidate:
    """The confidence in one number of clusters, by the paper's and by the default mixture.

    Attributes:
      num_clusters: M.
      paper_mss: of the paper's mixture.
      default_mss: of the default mixture.
      null_mss: of the default mixture, what 95 % of federations without clusters stay below.
    """

    num_clusters: int
    paper_mss: float
    default_mss: float
    null_mss: float

    @property
    def ratio(self) -> float:
        """The default mixture's MSS in units of what is unusual without clusters."""
        return self.default_mss / self.null_mss


@dataclasses.dataclass(frozen=True)
class ClusterCount:
    """The choice of M, and the evidence for it.

    Attributes:
      candidates: the score table.
      paper_choice: the candidate with the largest MSS of the paper's mixture.
      default_choice: the candidate with the largest ratio of its MSS to the null's.
      p_value: how often clients without clusters reach the largest ratio.
    """

    candidates: tuple[Candidate, ...]
    paper_choice: int
    default_choice: int
    p_value: float

    @property
    def detected(self) -> bool:
        """Whether there are clusters at all."""
        return self.p_value <= SIGNIFICANCE

    @property
    def sentence(self) -> str:
        """The finding in words."""
        chance = f"{self.p_value:.1%} of federations without clusters look as well separated"
        if self.detected:
            return f"{self.default_choice} clusters detected: at most {chance}"
        return f"no cluster structure detected: {chance}"

    def uncertainty(self, mpo: float) -> float:
        """MPO, raised to the p-value where no clusters were detected.

        MPO alone never says "no clusters": the switching round would trust a mixture of noise.
        """
        return mpo if self.detected else max(mpo, self.p_value)


def count_clusters(
    components: PrincipalComponents, candidates: Sequence[int], seed: int
) -> ClusterCount:
    """Choose M among `candidates`; with a single one, test whether there are clusters at all."""
    candidates = tuple(sorted(set(candidates)))
    if not candidates:
        raise UserError("there is no candidate for the number of clusters: name at least one")
    noise = None if components.noise is None else tuple(components.noise)
    null = null_mss(len(components.coordinates), candidates, seed, noise)
    unusual = np.quantile(null, 1 - SIGNIFICANCE, axis=0)
    table = tuple(
        Candidate(
            candidate,
            paper_mixture(components, candidate, seed).mss,
            default_mixture(components, candidate).mss,
            float(null_of_candidate),
        )
        for candidate, null_of_candidate in zip(candidates, unusual, strict=True)
    )
    default = max(table, key=lambda row: row.ratio)
    reached = np.count_nonzero((null / unusual).max(axis=1) >= default.ratio)
    return ClusterCount(
        candidates=table,
        paper_choice=max(table, key=lambda row: row.paper_mss).num_clusters,
        default_choice=default.num_clusters,
        p_value=(reached + 1) / (NULL_FEDERATIONS + 1),
    )


@functools.cache
def null_mss(
    num_clients: int,
    candidates: tuple[int, ...],
    seed: int,
    noise: tuple[float, ...] | None = None,
) -> np.ndarray:
    """The default mixture's MSS without clusters, [`NULL_FEDERATIONS`, candidates].

    The null: updates that differ by isotropic Gaussian noise only, in many more dimensions than
    there are clients. So it depends neither on the noise level nor on the model. With noise that
    differs between clients, as `PrincipalComponents` has it, the same holds in units of it.
    """
    generator = np.random.default_rng([seed, num_clients])
    scales = np.ones(num_clients) if noise is None else np.array(noise)
    rows = []
    for _ in range(NULL_FEDERATIONS):
        updates = noise_alone(generator, num_clients, _NULL_PARAMETERS)
        components = principal_components(
            updates * scales[:, np.newaxis], None if noise is None else scales
        )
        rows.append([default_mixture(components, candidate).mss for candidate in candidates])
    return np.array(rows)


def noise_alone(
    generator: np.random.Generator, num_clients: int, num_parameters: int
) -> np.ndarray:
    """Points [n, n] whose distances are distributed as those of standard normal ones in p > n.

    Their Gram matrix is Wishart's, and Bartlett's triangle is a root of that.
    """
    triangle = np.tril(generator.standard_normal((num_clients, num_clients)), -1)
    freedom = num_parameters - np.arange(num_clients)
    return triangle + np.diag(np.sqrt(generator.chisquare(freedom)))
