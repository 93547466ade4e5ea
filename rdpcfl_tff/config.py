"""Everything that decides a run, in one frozen object; written to `config.json` beside its results.

The names and defaults are the paper's. Every field is public, and a wrong one is refused here, with
the flag that sets it.
"""

import dataclasses
import math

from rdpcfl_tff.errors import UserError

ALGORITHMS = ("rdpcfl", "ifca", "mr_mtl", "local", "global", "odpcfl")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run.

    Attributes:
        algorithm: One of `ALGORITHMS`.
        dataset: mnist, fashion_mnist, cifar10 or digits.
        model: "cnn" or "resnet18".
        shift: How clusters differ: "rotation" (covariate shift) or "label_flip" (concept shift).
        cluster_sizes: Clients per true cluster; the first is the minority.
        samples_per_client: Train and validation records of a client; None for its share of all.
        epsilon: Each client's privacy budget; infinity trains without privacy.
        delta: The other half of the budget.
        rounds: E.
        local_epochs: K.
        batch_size: b, the expected size of a Poisson batch.
        first_batch_size: b1, R-DPCFL's batch size in round 1; None for a full batch.
        learning_rate: eta.
        clip_norm: c.
        num_clusters: M; None lets R-DPCFL search it, and gives IFCA the true number.
        mixture: "default", or "paper" for the mixture as the authors' code fits it.
        eps_select_ratio: The epsilon of one private selection, as a part of `epsilon`.
        selection_ratio: The part of all rounds that begin with a private selection.
        mr_mtl_lambda: The strength of MR-MTL's pull to the mean.
        dp_engine: "fast", or "tf_privacy" for clipping by TF Privacy's vectorised optimizer.
        seed: Decides the split, the initial weights, and the noise unless `noise_seed` is "os".
        noise_seed: "seed", or "os" for sampling and noise that nobody can repeat.
        eval_every: Rounds between two looks at the validation accuracy.
    """

    algorithm: str
    dataset: str
    model: str = "cnn"
    shift: str = "rotation"
    cluster_sizes: tuple[int, ...] = (3, 6, 6, 6)
    samples_per_client: int | None = None
    epsilon: float = math.inf
    delta: float = 1e-4
    rounds: int = 200
    local_epochs: int = 1
    batch_size: int = 32
    first_batch_size: int | None = None
    learning_rate: float = 0.005
    clip_norm: float = 1.0
    num_clusters: int | None = None
    mixture: str = "default"
    eps_select_ratio: float = 0.03
    selection_ratio: float = 0.1
    mr_mtl_lambda: float = 1.0
    dp_engine: str = "fast"
    seed: int = 0
    noise_seed: str = "seed"
    eval_every: int = 1

    @property
    def selection_rounds(self) -> int:
        """floor(E/10), with the paper's ratio."""
        # A product such as 30 * 0.1 must not fall below 3 by its last bit.
        return math.floor(self.rounds * self.selection_ratio + 1e-9)

    @property
    def epsilon_select(self) -> float:
        """The epsilon of one selection."""
        return self.eps_select_ratio * self.epsilon

    def __post_init__(self):
        if self.algorithm not in ALGORITHMS:
            raise UserError(
                f"--algorithm={self.algorithm} is unknown: choose one of {', '.join(ALGORITHMS)}"
            )
        for flag, value in (
            ("rounds", self.rounds),
            ("local_epochs", self.local_epochs),
            ("batch_size", self.batch_size),
            ("eval_every", self.eval_every),
        ):
            if value < 1:
                raise UserError(f"--{flag}={value}: must be at least 1")
        for flag, number in (("lr", self.learning_rate), ("clip", self.clip_norm)):
            if not (number > 0 and math.isfinite(number)):
                raise UserError(f"--{flag}={number:g}: must be a positive number")
        if self.noise_seed not in ("seed", "os"):
            raise UserError(f"--noise_seed={self.noise_seed}: must be seed or os")
        if not self.epsilon > 0:
            raise UserError(
                f"--eps={self.epsilon:g}: must be above 0 (inf for a run that is not private)"
            )
        if self.dp_engine not in ("fast", "tf_privacy"):
            raise UserError(f"--dp_engine={self.dp_engine}: must be fast or tf_privacy")
        if not (self.mr_mtl_lambda >= 0 and math.isfinite(self.mr_mtl_lambda)):
            raise UserError(f"--mr_mtl_lambda={self.mr_mtl_lambda:g}: must be 0 or larger")
        if self.mixture not in ("default", "paper"):
            raise UserError(f"--mixture={self.mixture}: must be default or paper")
        if not 0 < self.eps_select_ratio < 1:
            raise UserError(
                f"--eps_select_ratio={self.eps_select_ratio:g}: must be between 0 and 1"
            )
        if not 0 <= self.selection_ratio <= 0.5:
            raise UserError(
                f"--selection_ratio={self.selection_ratio:g}: must be from 0 to 0.5, because the "
                "selections begin after up to half of the rounds"
            )
        if self.first_batch_size is not None and self.first_batch_size < 1:
            raise UserError(f"--first_batch_size={self.first_batch_size}: must be at least 1")
        clients = sum(self.cluster_sizes)
        if self.num_clusters is not None and not 1 <= self.num_clusters < clients:
            raise UserError(
                f"--num_clusters={self.num_clusters}: must be from 1 to {clients - 1}, one less "
                "than there are clients"
            )
        if self.algorithm == "rdpcfl" and clients < 4 and self.num_clusters is None:
            raise UserError(
                f"{clients} clients are too few to search the number of clusters: give "
                "--num_clusters, or more clients in --cluster_sizes"
            )
        if self.algorithm == "rdpcfl" and self.rounds < 2:
            raise UserError(
                f"--rounds={self.rounds}: R-DPCFL clusters in round 1 and trains after it, so it "
                "needs at least 2"
            )
        if self.seed < 0:
            raise UserError(f"--seed={self.seed}: must be 0 or larger")
