"""What a planned run will cost, and whether its first round will find the clusters.

Joins the accountant and the forecast: all from public numbers, before anything is trained. It also
finds the noise that round 1 can bear (the paper has one noise multiplier for all rounds).
"""

import dataclasses
import math
from collections.abc import Callable

from rdpcfl_tff.clustering.forecast import Forecast, Signal, forecast
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import accounting

# Clustering "should work" if so many of the drawn federations are clustered without an error.
LIKELY = 0.9
# The noise of round 1 is chosen as if the clusters were nearer to each other by this factor.
CAUTION = 2.0
# Round 1 has noise enough if more of it would spare the later rounds less than a hundredth.
_SPARED = 1.01
# How many clusters are expected if nobody says.
EXPECTED_CLUSTERS = 4
# Searches end when they are so near.
_PRECISION = 1.02
_LARGEST_NOISE_MULTIPLIER = 1e4
_LARGEST_EPSILON = 100.0


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """The public numbers of a run of R-DPCFL whose clients are all alike.

    Attributes:
        schedule: What a client does with its records; round 1 is a full batch.
        epsilon: The budget of each client.
        delta: The other half of the budget.
        cluster_sizes: Clients in each of the clusters that are expected.
        num_parameters: p.
        signal: How the clusters are expected to differ.
        first_round_noise_multiplier: The z of round 1, if it is not that of all rounds.
    """

    schedule: accounting.Schedule
    epsilon: float
    delta: float
    cluster_sizes: tuple[int, ...]
    num_parameters: int
    signal: Signal
    first_round_noise_multiplier: float | None = None

    def __post_init__(self):
        if self.schedule.first_batch_size != self.schedule.records:
            raise UserError("a plan needs a full batch in round 1: leave out --first_batch_size")
        if not 0 < self.epsilon < math.inf:
            raise UserError(f"--eps={self.epsilon:g}: a plan needs a positive, finite budget")

    def changed(self, records: int | None = None, batch_size: int | None = None) -> "PlannedRun":
        """The same run with another N or b."""
        records = records or self.schedule.records
        schedule = dataclasses.replace(
            self.schedule,
            records=records,
            first_batch_size=records,
            batch_size=batch_size or self.schedule.batch_size,
        )
        return dataclasses.replace(self, schedule=schedule)

    def with_epsilon(self, epsilon: float) -> "PlannedRun":
        """The same run with another budget, of which a selection takes the same part."""
        epsilon_select = self.schedule.epsilon_select * epsilon / self.epsilon
        schedule = dataclasses.replace(self.schedule, epsilon_select=epsilon_select)
        return dataclasses.replace(self, schedule=schedule, epsilon=epsilon)

    @property
    def noise_multiplier(self) -> float:
        """z of the rounds after the first, and of that, too, if it has none of its own."""
        return accounting.noise_multiplier(
            self.schedule, self.epsilon, self.delta, self.first_round_noise_multiplier
        )

    @property
    def first_noise(self) -> float:
        """The noise of a client's mean gradient in round 1, per coordinate, in units of c."""
        return self._first_noise(self.first_round_noise_multiplier or self.noise_multiplier)

    def _first_noise(self, noise_multiplier: float) -> float:
        # K full batches: their gradients add up, and so do the variances of their noise.
        return noise_multiplier / self.schedule.records / math.sqrt(self.schedule.local_epochs)

    @property
    def later_noise(self) -> float:
        """The same for the sum of a later round's gradients: z sqrt(steps) / b."""
        steps = accounting.steps_per_round(
            self.schedule.records, self.schedule.batch_size, self.schedule.local_epochs
        )
        return self.noise_multiplier * math.sqrt(steps) / self.schedule.batch_size

    @property
    def budget_shares(self) -> dict[str, float]:
        """What each stage takes of the RDP."""
        return accounting.budget_shares(
            self.schedule, self.noise_multiplier, self.delta, self.first_round_noise_multiplier
        )

    def forecast(self) -> Forecast:
        """What round 1 will show."""
        return self._forecast(self.signal, self.first_noise)

    def _forecast(self, signal: Signal, noise: float) -> Forecast:
        return forecast(
            signal, self.cluster_sizes, self.schedule.records, noise, self.num_parameters
        )

    def should_work(self) -> bool:
        """Whether round 1 should find the clusters; never if the budget is too small to train."""
        try:
            return self.forecast().exact >= LIKELY
        except UserError:
            return False


def optimised(run: PlannedRun) -> PlannedRun:
    """The run with what round 1 can bear as its noise, and a smaller b if it needs one to work."""
    run = dataclasses.replace(run, first_round_noise_multiplier=None)
    if not run.should_work():
        run = run.changed(batch_size=largest_batch_size(run) or run.schedule.batch_size)
    noise_multiplier = first_round_noise_multiplier(run)
    return dataclasses.replace(run, first_round_noise_multiplier=noise_multiplier)


def even_clusters(num_clients: int, num_clusters: int) -> tuple[int, ...]:
    """The sizes of so many clusters, as equal as they can be."""
    if not 2 <= num_clusters <= num_clients // 2:
        raise UserError(
            f"{num_clusters} clusters of {num_clients} clients: a plan needs at least 2 clusters, "
            "and 2 clients in each"
        )
    small, larger = divmod(num_clients, num_clusters)
    return (small,) * (num_clusters - larger) + (small + 1,) * larger


def smallest_records(run: PlannedRun) -> int | None:
    """N from which on clustering should work; None if no N below 1/delta is enough."""
    largest = math.ceil(1 / run.delta) - 1
    found = _smallest(
        lambda records: run.changed(records=math.floor(records)).should_work(),
        max(run.schedule.batch_size, 2),
        largest,
    )
    return None if found is None else math.floor(found)


def smallest_epsilon(run: PlannedRun) -> float | None:
    """The budget from which on clustering should work; None if 100 is not enough."""
    smallest = min(0.1, run.epsilon)
    return _smallest(lambda eps: run.with_epsilon(eps).should_work(), smallest, _LARGEST_EPSILON)


def largest_batch_size(run: PlannedRun) -> int | None:
    """The largest b after round 1, a power of two or N, at which clustering should work."""
    records = run.schedule.records
    sizes = [2**power for power in range(1, records.bit_length()) if 2**power < records]
    for size in [records, *reversed(sizes)]:
        if run.changed(batch_size=size).should_work():
            return size
    return None


def first_round_noise_multiplier(run: PlannedRun) -> float:
    """The noise multiplier that round 1 can bear: never below the one that all rounds would share.

    The largest at which clusters that are `CAUTION` times nearer than expected should still be
    found, but none beyond what helps the later rounds.
    """
    shared = accounting.noise_multiplier(run.schedule, run.epsilon, run.delta)
    cautious = dataclasses.replace(run.signal, centres=run.signal.centres / CAUTION)

    def too_noisy(multiplier: float) -> bool:
        return run._forecast(cautious, run._first_noise(multiplier)).exact < LIKELY

    without = accounting.noise_multiplier(
        run.schedule, run.epsilon, run.delta, _LARGEST_NOISE_MULTIPLIER
    )

    def enough(multiplier: float) -> bool:
        spent = accounting.epsilon_spent(run.schedule, _SPARED * without, run.delta, multiplier)
        return spent <= run.epsilon

    limit = _smallest(lambda z: enough(z) or too_noisy(z), shared, _LARGEST_NOISE_MULTIPLIER)
    assert limit is not None  # much noise is enough
    # One step of the search back, to the side where clusters are found.
    return limit if not too_noisy(limit) else max(shared, limit / _PRECISION)


def _smallest(works: Callable[[float], bool], low: float, high: float) -> float | None:
    """Where it begins to work, if more is better, to `_PRECISION` and on the side that works."""
    if works(low):
        return low
    if not works(high):
        return None
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high
