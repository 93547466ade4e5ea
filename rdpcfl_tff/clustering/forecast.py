"""Will round 1 find the clusters? An answer from public numbers, before anything is trained.

Draws the clients' principal components from a model of their updates, and fits the mixture of a
real run on them. Nothing here is private: the signal is a user's guess, or of a public data set.
docs/plan.md derives the model. All lengths are in units of the clip norm c, which thus cancels.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rdpcfl_tff.clustering.count import noise_alone
from rdpcfl_tff.clustering.matching import match_partition
from rdpcfl_tff.clustering.mixture import default_mixture, principal_components
from rdpcfl_tff.errors import UserError

# The distance of the two nearest clusters: rotated MNIST and the paper's CNN at theta_init.
MNIST_DISTANCE = 0.09
# How one record's clipped gradient varies inside a cluster: there, and with shifted labels.
MNIST_SPREAD = 1.0
MNIST_SPREAD_RANK = 16
MNIST_SPREAD_ALONG = 0.004

# Federations that one forecast draws.
DRAWS = 40


@dataclasses.dataclass(frozen=True)
class Signal:
    """How clusters differ, and how records differ inside a cluster, by their clipped gradients.

    Attributes:
        centres: The mean gradient of each cluster, [M, d] with d < M, along axes that span them.
        spread: The variance of a record's gradient inside its cluster, all coordinates together;
            at most 1, because it is clipped.
        spread_rank: Over how many directions it spreads, (tr S)^2 / tr S^2 of its covariance S.
        spread_along: Its variance along one of the axes of the centres.
    """

    centres: np.ndarray
    spread: float = MNIST_SPREAD
    spread_rank: int = MNIST_SPREAD_RANK
    spread_along: float = MNIST_SPREAD_ALONG

    @classmethod
    def from_distance(cls, distance: float, num_clusters: int) -> "Signal":
        """Every two of the clusters at the same distance; records that vary as MNIST's do."""
        if not 0 < distance <= 2:
            raise UserError(
                f"--signal={distance:g}: the distance of two mean gradients, in units of the clip "
                "norm, is above 0 and at most 2"
            )
        corners = np.eye(num_clusters) * distance / np.sqrt(2)
        return cls(_coordinates((corners - corners.mean(axis=0)) @ corners.T))

    @classmethod
    def measured(
        cls, mean_gradients: np.ndarray, clusters: Sequence[int], records: int
    ) -> "Signal":
        """From the mean clipped gradients, float[n, p], of clients with so many records each."""
        labels = np.array(clusters)
        num_clusters = labels.max() + 1
        centres = np.stack([mean_gradients[labels == m].mean(axis=0) for m in range(num_clusters)])
        residuals = mean_gradients - centres[labels]
        freedom = len(labels) - num_clusters
        # The covariance of a record's gradient has these eigenvalues, and zeros.
        eigenvalues = np.linalg.eigvalsh(residuals @ residuals.T) * records / freedom
        spread, squares = eigenvalues.sum(), np.square(eigenvalues).sum()
        # Few clients show too few directions: the unbiased estimate of tr S^2.
        unbiased = (squares - spread**2 / freedom) * freedom**2 / ((freedom - 1) * (freedom + 2))

        centres = centres - centres.mean(axis=0)
        # Centres of a sample are farther apart than the true ones: this part is its own doing.
        centring = np.eye(num_clusters) - 1 / num_clusters
        sampling = centring @ np.diag(spread / (records * np.bincount(labels))) @ centring
        axes = np.linalg.svd(centres, full_matrices=False)[2][:-1]
        along = np.square(residuals @ axes.T).sum(axis=0) * records / freedom
        return cls(
            centres=_coordinates(centres @ centres.T - sampling),
            spread=float(spread),
            spread_rank=max(1, round(spread**2 / unbiased)),
            spread_along=float(along.mean()),
        )

    @property
    def num_clusters(self) -> int:
        """M."""
        return len(self.centres)

    @property
    def distance(self) -> float:
        """Of the two nearest centres."""
        distances = np.linalg.norm(self.centres[:, np.newaxis] - self.centres, axis=-1)
        return float(distances[np.triu_indices(self.num_clusters, 1)].min())


def _coordinates(gram: np.ndarray) -> np.ndarray:
    """Points with this centred Gram matrix; what is negative in it is taken for 0."""
    eigenvalues, vectors = np.linalg.eigh(gram)
    return vectors[:, :0:-1] * np.sqrt(eigenvalues[:0:-1].clip(min=0))


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What the first round of many such federations came to.

    Attributes:
        exact: The share of them in which every client is in its cluster, with M given.
        mss: The median of the minimum pairwise separation score.
    """

    exact: float
    mss: float


def forecast(
    signal: Signal,
    cluster_sizes: Sequence[int],
    records: int,
    noise: float,
    num_parameters: int,
    seed: int = 0,
) -> Forecast:
    """Round 1 of `DRAWS` federations, each with its own records and its own noise.

    Args:
        signal: How the clusters differ.
        cluster_sizes: Clients in each of them.
        records: N, of every client.
        noise: The noise's standard deviation in each coordinate of a client's mean gradient:
            z / N after one full batch.
        num_parameters: p.
        seed: Of the draws. One seed draws alike at every noise, so that noise can be searched.
    """
    generator = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(len(cluster_sizes)), cluster_sizes)
    exact, scores = [], []
    for _ in range(DRAWS):
        updates = draw_updates(signal, clusters, records, noise, num_parameters, generator)
        mixture = default_mixture(principal_components(updates), signal.num_clusters)
        exact.append(match_partition(mixture.partition.tolist(), clusters.tolist()).exact)
        scores.append(mixture.mss)
    return Forecast(float(np.mean(exact)), float(np.median(scores)))


def draw_updates(
    signal: Signal,
    clusters: np.ndarray,
    records: int,
    noise: float,
    num_parameters: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Updates [n, d + r + n] whose distances are distributed as those of the model's p coordinates.

    Only d + r coordinates differ by more than noise.
    """
    num_clients, axes = len(clusters), signal.centres.shape[1]

    def normals(dimensions: int, variance: float) -> np.ndarray:
        return generator.standard_normal((num_clients, dimensions)) * np.sqrt(variance)

    along = signal.spread_along / records + noise**2
    across = signal.spread / signal.spread_rank / records + noise**2
    others = noise_alone(generator, num_clients, num_parameters - axes - signal.spread_rank)
    return np.hstack(
        [
            signal.centres[clusters] + normals(axes, along),
            normals(signal.spread_rank, across),
            noise * others,
        ]
    )
