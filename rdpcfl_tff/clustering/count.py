"""The number of clusters M: the candidate whose mixture is the most confident, and is it real?

Implements the paper's appendix on the number of clusters (argmax of MSS), and what the paper lacks:
a comparison with clients that have no clusters. Nothing here is private (see `mixture.py`).
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from rdpcfl_tff.clustering.mixture import PrincipalComponents, default_mixture, paper_mixture
from rdpcfl_tff.errors import UserError

# With the observed one they are 200, so that p-values are multiples of 0.005.
NULL_FEDERATIONS = 199
# Above this p-value the clusters are taken for noise.
SIGNIFICANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Candidate:
    """The confidence in one number of clusters, by the paper's and by the default mixture."""

    num_clusters: int
    paper_mss: float
    default_mss: float


@dataclasses.dataclass(frozen=True)
class ClusterCount:
    """The choice of M, and the evidence for it.

    Attributes:
      candidates: the score table.
      paper_choice: the candidate with the largest MSS of the paper's mixture.
      default_choice: the candidate with the largest MSS of the default mixture.
      p_value: how often clients without clusters reach the default mixture's largest MSS.
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
    paper = [paper_mixture(components, candidate, seed).mss for candidate in candidates]
    default = [default_mixture(components, candidate).mss for candidate in candidates]
    noise = None if components.noise is None else tuple(components.noise)
    null = null_mss(len(components.coordinates), candidates, seed, noise)
    reached = np.count_nonzero(null >= max(default))
    return ClusterCount(
        candidates=tuple(map(Candidate, candidates, paper, default)),
        paper_choice=candidates[int(np.argmax(paper))],
        default_choice=candidates[int(np.argmax(default))],
        p_value=(reached + 1) / (NULL_FEDERATIONS + 1),
    )


@functools.cache
def null_mss(
    num_clients: int,
    candidates: tuple[int, ...],
    seed: int,
    noise: tuple[float, ...] | None = None,
) -> np.ndarray:
    """The default mixture's largest MSS in each of `NULL_FEDERATIONS` without clusters.

    The null: updates that differ by isotropic Gaussian noise only, in many more dimensions than
    there are clients. Their principal components then have equal eigenvalues, and directions that
    are a uniformly random orthonormal basis. So it does not depend on the noise level, the model
    or its number of parameters. With noise that differs between clients, as `PrincipalComponents`
    has it, the same holds of updates in units of their noise.
    """
    generator = np.random.default_rng([seed, num_clients])
    largest = []
    for _ in range(NULL_FEDERATIONS):
        components = _null_components(generator, num_clients, noise)
        largest.append(max(default_mixture(components, candidate).mss for candidate in candidates))
    return np.array(largest)


def _null_components(
    generator: np.random.Generator, num_clients: int, noise: tuple[float, ...] | None
) -> PrincipalComponents:
    drawn = generator.standard_normal((num_clients, num_clients - 1))
    if noise is None:
        basis, _ = np.linalg.qr(drawn - drawn.mean(axis=0))
        return PrincipalComponents(np.ones(num_clients - 1), basis)
    scales = np.array(noise)[:, np.newaxis]
    # Centring, in units of the noise: what is left is orthogonal to 1 / scale.
    drawn -= np.average(drawn * scales, axis=0, weights=scales[:, 0] ** -2) / scales
    basis, _ = np.linalg.qr(drawn)
    return PrincipalComponents(np.ones(num_clients - 1), basis * scales, scales[:, 0])
