"""From the noised updates of round 1 to a Gaussian mixture and its confidence: MSS and MPO.

Implements the paper's section on the applicability of R-DPCFL and the appendix on its GMM.
Nothing is private here: the updates were noised by the clients, and all of this is post-processing.
The learning rate cancels: it is a common factor of all updates, and every space is scaled.
"""

import dataclasses
import math
import warnings

import numpy as np
from scipy.special import erfc
from sklearn.cluster import AgglomerativeClustering
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from rdpcfl_tff.errors import UserError

# Float64 copies are made of this many columns at a time: 21 clients take 11 MB.
_BLOCK_COLUMNS = 2**16
# EM stops when no client's responsibility moves by more.
_TOLERANCE = 1e-4
_MAX_ITERATIONS = 1000


@dataclasses.dataclass(frozen=True)
class PrincipalComponents:
    """The clients' updates along their own principal axes, in float64.

    Attributes:
      eigenvalues: the sum of squares along each axis, falling, [n-1].
      coordinates: [n, n-1], centred; on each axis the largest in size is positive.
      noise: the standard deviation of each client's noise beside the others', [n], of mean square
        1; None if all are alike. The eigenvalues are then those of updates in units of their noise.
    """

    eigenvalues: np.ndarray
    coordinates: np.ndarray
    noise: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Space:
    """Where a mixture lives; scores from different spaces cannot be compared."""

    name: str
    dimensions: int
    scaling: str


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A fitted mixture of M spherical Gaussians over n clients in d dimensions.

    Attributes:
      space: the space of everything below.
      coordinates: the clients' updates [n, d].
      means: [M, d].
      variances: per coordinate, [M].
      weights: [M].
      responsibilities: pi[i, m], the posterior of cluster m for client i, [n, M].
      em_iterations: number of EM steps.
      converged: whether EM came to rest.
      separation_scores: SS(m, m'), [M, M], with infinity on the diagonal.
      mss: minimum pairwise separation score, the confidence.
      mpo: maximum pairwise overlap, 2 Q(MSS), the uncertainty.
    """

    space: Space
    coordinates: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    weights: np.ndarray
    responsibilities: np.ndarray
    em_iterations: int
    converged: bool
    separation_scores: np.ndarray = dataclasses.field(init=False)
    mss: float = dataclasses.field(init=False)
    mpo: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        scores = separation_scores(self.means, self.variances)
        object.__setattr__(self, "separation_scores", scores)
        object.__setattr__(self, "mss", float(scores.min()))
        object.__setattr__(self, "mpo", max_pairwise_overlap(self.mss))

    @property
    def partition(self) -> np.ndarray:
        """The most probable cluster of each client, [n]."""
        return self.responsibilities.argmax(axis=1)


def principal_components(
    updates: np.ndarray, noise: np.ndarray | None = None
) -> PrincipalComponents:
    """PCA of the updates, float[n, p], by their n x n Gram matrix: p may be many millions.

    A client with few records or a small budget has more noise than the others, and in p dimensions
    it would be a principal axis of its own. With the known noise of every client, [n], up to a
    common factor, each update is measured in units of its noise, which then spreads alike.
    """
    num_clients, num_parameters = updates.shape
    weights = None
    if noise is not None:
        noise = np.divide(noise, np.sqrt(np.mean(np.square(noise))))
        weights = 1 / np.square(noise)
    gram = np.zeros((num_clients, num_clients))
    for start in range(0, num_parameters, _BLOCK_COLUMNS):
        block = updates[:, start : start + _BLOCK_COLUMNS].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities are reported below
            block -= np.average(block, axis=0, weights=weights)
            if noise is not None:
                block /= noise[:, np.newaxis]
            gram += block @ block.T
    if not np.isfinite(gram).all():
        raise UserError("the updates of round 1 are not finite: use a smaller learning rate (--lr)")
    if not gram.any():
        raise UserError(
            "the updates of round 1 are all equal, so that there is nothing to cluster: "
            "use a learning rate (--lr) above 0"
        )
    eigenvalues, vectors = np.linalg.eigh(gram)
    # Largest first; the smallest is the zero that centring leaves.
    eigenvalues, vectors = eigenvalues[:0:-1].clip(min=0), vectors[:, :0:-1]
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[np.newaxis], axis=0)
    coordinates = vectors * np.sign(largest) * np.sqrt(eigenvalues)
    if noise is not None:
        coordinates *= noise[:, np.newaxis]
    return PrincipalComponents(eigenvalues, coordinates, noise)


def paper_mixture(components: PrincipalComponents, num_clusters: int, seed: int) -> Mixture:
    """The mixture as the authors' code fits it: `--mixture=paper`.

    Two principal components, each scaled to [0, 1]; one variance per component; scikit-learn's EM
    from a k-means++ seeding, which `seed` draws.
    """
    coordinates = components.coordinates[:, :2]
    _check_num_clusters(num_clusters, len(coordinates))
    lowest, highest = coordinates.min(axis=0), coordinates.max(axis=0)
    coordinates = (coordinates - lowest) / (highest - lowest)
    fitted = GaussianMixture(
        num_clusters,
        covariance_type="spherical",
        init_params="k-means++",
        tol=1e-6,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is in the result
        fitted.fit(coordinates)
    return Mixture(
        space=Space("paper", 2, "each axis to [0, 1]"),
        coordinates=coordinates,
        means=fitted.means_,
        variances=fitted.covariances_,
        weights=fitted.weights_,
        responsibilities=fitted.predict_proba(coordinates),
        em_iterations=int(fitted.n_iter_),
        converged=bool(fitted.converged_),
    )


def default_mixture(components: PrincipalComponents, num_clusters: int) -> Mixture:
    """The mixture that finds the paper's clusters most reliably.

    M-1 principal components, the dimensions that M centres can span, each shrunk to its share of
    signal and then all scaled together; one variance for all components, which is the paper's own
    model, where every client adds the same noise, and does not collapse on a cluster of one; EM
    from Ward's clusters, so that nothing is random.
    Where the clients' noise differs, the variance is that of the average client, and each client
    has its known multiple of it: a noisy one moves the means less, and is less sure of its cluster.
    """
    num_clients, dimensions = len(components.coordinates), num_clusters - 1
    _check_num_clusters(num_clusters, num_clients)
    used, unexplained = np.split(components.eigenvalues, [dimensions])
    # M clusters explain nothing on the axes from the M-th on, so these show what noise spreads on
    # every axis. In a large model it may hide the last axes in use, which then only blur the rest.
    spread_of_noise = np.median(unexplained)
    shares = signal_shares(used, spread_of_noise)
    total_variance = (used * shares**2).sum() / num_clients
    coordinates = components.coordinates[:, :dimensions] * shares / np.sqrt(total_variance)

    # Noise alone spreads alike along all unexplained axes; if the first of them stands out, then
    # the clusters are that wide, on every axis before it was shrunk.
    width = (unexplained[0] - spread_of_noise) / (num_clients - num_clusters)
    smallest_variance = width * shares.min() ** 2 / total_variance

    noise = np.ones(num_clients) if components.noise is None else components.noise
    start = AgglomerativeClustering(num_clusters, linkage="ward").fit_predict(coordinates)
    responsibilities = np.eye(num_clusters)[start]
    em_iterations, converged = 0, False
    while not converged and em_iterations < _MAX_ITERATIONS:
        weights, means, variance = _maximisation(
            coordinates, noise, responsibilities, smallest_variance
        )
        posterior = _expectation(coordinates, noise, weights, means, variance)
        converged = bool(np.abs(posterior - responsibilities).max() <= _TOLERANCE)
        responsibilities = posterior
        em_iterations += 1
    return Mixture(
        space=Space("default", dimensions, "each axis by its share of signal, unit total variance"),
        coordinates=coordinates,
        means=means,
        variances=np.full(num_clusters, variance),
        weights=weights,
        responsibilities=responsibilities,
        em_iterations=em_iterations,
        converged=converged,
    )


def signal_shares(eigenvalues: np.ndarray, spread_of_noise: float) -> np.ndarray:
    """Of the sum of squares along each axis, the share that is not noise: Wiener's filter, [d].

    What noise adds to a client's coordinate on an axis falls with this share, about as its inverse.
    So shrinking by it makes the noise alike on all axes, as a spherical mixture takes it to be.
    """
    tiny = np.finfo(np.float64).tiny  # an axis without any spread has eigenvalue 0
    shares = 1 - spread_of_noise / np.maximum(eigenvalues, tiny)
    return shares.clip(min=np.finfo(np.float64).eps)


def _maximisation(
    coordinates: np.ndarray,
    noise: np.ndarray,
    responsibilities: np.ndarray,
    smallest_variance: float,
) -> tuple[np.ndarray, np.ndarray, float]:
    num_clients, dimensions = coordinates.shape
    # Never zero: a component may lose all its clients, and coordinates may coincide.
    tiny = np.finfo(np.float64).eps
    sizes = responsibilities.sum(axis=0) + tiny
    precise = responsibilities / noise[:, np.newaxis] ** 2
    means = precise.T @ coordinates / (precise.sum(axis=0) + tiny)[:, np.newaxis]
    scatter = (precise * _squared_distances(coordinates, means)).sum()
    # Divided by n - M, not n: with few clients per cluster the means follow the noise.
    variance = scatter / (dimensions * (num_clients - len(means)))
    return sizes / sizes.sum(), means, max(variance, smallest_variance, tiny)


def _expectation(
    coordinates: np.ndarray,
    noise: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    variance: float,
) -> np.ndarray:
    variances = variance * noise[:, np.newaxis] ** 2
    logits = np.log(weights) - _squared_distances(coordinates, means) / (2 * variances)
    likelihoods = np.exp(logits - logits.max(axis=1, keepdims=True))
    return likelihoods / likelihoods.sum(axis=1, keepdims=True)


def _squared_distances(coordinates: np.ndarray, means: np.ndarray) -> np.ndarray:
    return np.square(coordinates[:, np.newaxis] - means).sum(axis=-1)


def separation_scores(means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """SS(m, m') = |mu_m - mu_m'| / (2 sigma), with the larger of the two sigmas: [M, M]."""
    distances = np.linalg.norm(means[:, np.newaxis] - means, axis=-1)
    np.fill_diagonal(distances, np.inf)
    return distances / (2 * np.sqrt(np.maximum(variances[:, np.newaxis], variances)))


def max_pairwise_overlap(mss: float) -> float:
    """MPO = 2 Q(MSS), Q being the upper tail of the standard normal distribution."""
    return float(erfc(mss / math.sqrt(2)))


def switch_round(mpo: float, rounds: int) -> int:
    """E_c = floor((1 - MPO) E / 2), the last round that draws clusters from the mixture."""
    return math.floor((1 - mpo) * rounds / 2)


def _check_num_clusters(num_clusters: int, num_clients: int) -> None:
    if not 2 <= num_clusters < num_clients:
        raise UserError(
            f"--num_clusters={num_clusters} does not fit {num_clients} clients: a mixture needs "
            f"from 2 to {num_clients - 1} clusters"
        )
