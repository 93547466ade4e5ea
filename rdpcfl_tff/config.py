"""Everything that decides a run, in one frozen object; written to `config.json` beside its results.

The names and defaults are the paper's. Every field is public, and a wrong one is refused here, with
the flag that sets it.
"""

import dataclasses
import math
from typing import Any

from rdpcfl_tff.errors import UserError

ALGORITHMS = ("rdpcfl", "ifca", "mr_mtl", "local", "global", "odpcfl")
MODELS = ("cnn", "resnet18", "mlp")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run.

    Attributes:
        algorithm: One of `ALGORITHMS`.
        dataset: mnist, fashion_mnist, cifar10, digits, or a name for data of your own.
        data_sha256: The digest of data of your own; None for a published data set.
        model: One of `MODELS`, or "module:function" for a model of your own.
        shift: How clusters differ: "rotation" (covariate shift) or "label_flip" (concept shift).
        cluster_sizes: Clients per true cluster; the first is the minority. Empty for data of your
            own, whose silo store knows the clients.
        samples_per_client: Train and validation records of a client; None for its share of all.
        overlap: Whether the clients of a cluster may have records in common.
        epsilon: Each client's privacy budget; infinity trains without privacy.
        delta: The other half of the budget.
        rounds: E.
        local_epochs: K.
        batch_size: b, the expected size of a Poisson batch.
        first_batch_size: b1, R-DPCFL's batch size in round 1; None for a full batch.
        first_round_noise_multiplier: R-DPCFL's z in round 1; None for that of all rounds, and
            "auto" for what round 1 can bear by `outlook.py`.
        learning_rate: eta.
        clip_norm: c.
        num_clusters: M; None lets R-DPCFL search it, and gives IFCA the true number.
        mixture: "default", or "paper" for the mixture as the authors' code fits it.
        eps_select_ratio: The epsilon of one private selection, as a part of `epsilon`.
        selection_ratio: The part of all rounds that begin with a private selection.
        selection_rounds: How many rounds do; None for the part that `selection_ratio` says.
        weighted_averages: Whether clients with less noise count for more in an average.
        mr_mtl_lambda: The strength of MR-MTL's pull to the mean.
        mr_mtl_clip_proximal: Whether the pull is part of every gradient that is clipped, as Liu et
            al. (2022) have it, and not added after the noise.
        dp_engine: "fast", or "tf_privacy" for clipping by TF Privacy's vectorised optimizer.
        seed: Decides the split, the initial weights, and the noise unless `noise_seed` is "os".
        noise_seed: "seed", or "os" for sampling and noise that nobody can repeat.
        eval_every: Rounds between two looks at the validation accuracy.
        client_dropout: The probability that a client is missing in a round.
    """

    algorithm: str = "rdpcfl"
    dataset: str = "own"
    data_sha256: str | None = None
    model: str = "cnn"
    shift: str = "rotation"
    cluster_sizes: tuple[int, ...] = (3, 6, 6, 6)
    samples_per_client: int | None = None
    overlap: bool = False
    epsilon: float = 3.0
    delta: float = 1e-4
    rounds: int = 200
    local_epochs: int = 1
    batch_size: int = 32
    first_batch_size: int | None = None
    first_round_noise_multiplier: float | str | None = None
    learning_rate: float = 0.005
    clip_norm: float = 1.0
    num_clusters: int | None = None
    mixture: str = "default"
    eps_select_ratio: float = 0.03
    selection_ratio: float = 0.1
    selection_rounds: int | None = None
    weighted_averages: bool = False
    mr_mtl_lambda: float = 1.0
    mr_mtl_clip_proximal: bool = False
    dp_engine: str = "fast"
    seed: int = 0
    noise_seed: str = "seed"
    eval_every: int = 1
    client_dropout: float = 0.0

    @property
    def selections(self) -> int:
        """The private selections of a client: floor(E/10), with the paper's ratio."""
        if self.selection_rounds is not None:
            return self.selection_rounds
        # A product such as 30 * 0.1 must not fall below 3 by its last bit.
        return math.floor(self.rounds * self.selection_ratio + 1e-9)

    @property
    def epsilon_select(self) -> float:
        """The epsilon of one selection."""
        return self.eps_select_ratio * self.epsilon

    def as_json(self) -> dict[str, Any]:
        """The fields as `config.json` has them."""
        fields = dataclasses.asdict(self) | {"cluster_sizes": list(self.cluster_sizes)}
        if math.isinf(self.epsilon):
            fields["epsilon"] = "inf"  # JSON has no infinity
        return fields

    def __post_init__(self):
        if self.algorithm not in ALGORITHMS:
            raise UserError(
                f"--algorithm={self.algorithm} is unknown: choose one of {', '.join(ALGORITHMS)}"
            )
        if self.model not in MODELS and ":" not in self.model:
            raise UserError(
                f"--model={self.model} is unknown: choose one of {', '.join(MODELS)}, or give "
                "module:function for a model of your own"
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
        if not 0 <= self.client_dropout < 1:
            raise UserError(
                f"--client_dropout={self.client_dropout:g}: must be 0 or more, and below 1"
            )
        if self.noise_seed not in ("seed", "os"):
            raise UserError(f"--noise_seed={self.noise_seed}: must be seed or os")
        if not (0 < self.epsilon <= 1e6 or self.epsilon == math.inf):
            raise UserError(
                f"--eps={self.epsilon:g}: must be above 0 and at most 1e6 (inf for a run that is "
                "not private)"
            )
        if self.dp_engine not in ("fast", "tf_privacy"):
            raise UserError(f"--dp_engine={self.dp_engine}: must be fast or tf_privacy")
        if self.weighted_averages and self.algorithm in ("local", "mr_mtl"):
            raise UserError(
                f"--weighted_averages: --algorithm={self.algorithm} averages no updates"
            )
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
        # R-DPCFL's selections begin after up to half of the rounds.
        most = self.rounds // 2 if self.algorithm == "rdpcfl" else self.rounds
        if self.selection_rounds is not None and not 0 <= self.selection_rounds <= most:
            raise UserError(
                f"--selection_rounds={self.selection_rounds}: must be from 0 to {most} with "
                f"--rounds={self.rounds}"
            )
        if self.first_batch_size is not None and self.first_batch_size < 1:
            raise UserError(f"--first_batch_size={self.first_batch_size}: must be at least 1")
        if self.first_round_noise_multiplier is not None:
            self._check_first_round_noise(self.first_round_noise_multiplier)
        if self.cluster_sizes:
            self.check_num_clients(sum(self.cluster_sizes))
        if self.algorithm == "rdpcfl" and self.rounds < 2:
            raise UserError(
                f"--rounds={self.rounds}: R-DPCFL clusters in round 1 and trains after it, so it "
                "needs at least 2"
            )
        if self.seed < 0:
            raise UserError(f"--seed={self.seed}: must be 0 or larger")

    def _check_first_round_noise(self, value: float | str) -> None:
        flag = f"--first_round_noise_multiplier={value}"
        if isinstance(value, str) and value != "auto":
            raise UserError(f"{flag}: must be a number or auto")
        if not isinstance(value, str) and not 0 < value < math.inf:
            raise UserError(f"{flag}: must be above 0 and finite")
        if self.algorithm != "rdpcfl":
            raise UserError(f"{flag}: only --algorithm=rdpcfl has a first round of its own")
        if math.isinf(self.epsilon):
            raise UserError(f"{flag}: there is no noise without a privacy budget; give --eps")
        if value == "auto" and self.first_batch_size is not None:
            raise UserError(f"{flag}: is for a full batch in round 1; leave out --first_batch_size")

    def check_num_clients(self, clients: int) -> None:
        """Refuses settings that do not fit so many clients."""
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
