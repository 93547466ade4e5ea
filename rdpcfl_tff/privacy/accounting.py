"""The price of one client's whole run: noise multiplier z for (epsilon, delta), epsilon for z.

Appendix "Privacy Budgeting" of the paper: RDP of all mechanisms, composed once, converted once.
Nothing private comes in here: every argument is a public number of the run.

>>> schedule = Schedule(
...     records=8000, rounds=200, batch_size=32, first_batch_size=8000,
...     selections=20, epsilon_select=0.03 * 5,
... )
>>> z = noise_multiplier(schedule, epsilon=5.0, delta=1e-4)
>>> print(f"{z:.2f} {epsilon_spent(schedule, z, delta=1e-4):.2f}")
1.30 5.00
"""

import dataclasses
import enum
import functools
import math

import dp_accounting
import numpy as np
from scipy import optimize

from rdpcfl_tff.errors import UserError

# The smallest epsilon is found at an order near 2 for epsilon 15, near 6 for 3, near 200 for 0.1.
ORDERS = np.array(
    [1 + tenths / 10 for tenths in range(1, 100)]
    + list(range(11, 65))
    + [80, 96, 128, 160, 192, 256, 384, 512],
    dtype=np.float64,
)

# dp_accounting ends its series for fractional orders at terms below e^-30 = 1e-13, which can err
# to the unsafe side. Ten times that is charged for every step, divided by (order - 1) as RDP is.
_SERIES_ERROR = 1e-12

_CALIBRATION_TOLERANCE = 1e-5
_LARGEST_LOG_NOISE_MULTIPLIER = 14.0


class Adjacency(enum.Enum):
    """Which two datasets of a client must look alike to an observer."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The public numbers of one client's run: every mechanism that touches its records.

    Args:
        records: N, the number of the client's training records.
        rounds: E.
        batch_size: b, the expected batch size in rounds 2 to E.
        first_batch_size: b1, the expected batch size in round 1 (N means a full batch).
        local_epochs: K.
        selections: how many times the client selects a cluster model.
        epsilon_select: the pure-DP epsilon of one selection.
        adjacency: the neighbouring relation that the guarantee is for.
    """

    records: int
    rounds: int
    batch_size: int
    first_batch_size: int
    local_epochs: int = 1
    selections: int = 0
    epsilon_select: float = 0.0
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    def __post_init__(self):
        if self.records < 2:
            raise UserError(
                f"a client has {self.records} training records, but needs at least 2: "
                "raise --samples_per_client or leave the client out"
            )
        if self.rounds < 1:
            raise UserError(f"--rounds={self.rounds}: there must be at least 1 round")
        if self.local_epochs < 1:
            raise UserError(f"--local_epochs={self.local_epochs}: must be at least 1")
        for size in (self.batch_size, self.first_batch_size):
            if not 1 <= size <= self.records:
                raise UserError(
                    f"a batch of {size} from {self.records} training records of a client: "
                    "--batch_size must be from 1 to the number of records"
                )
        if self.selections < 0:
            raise UserError(f"{self.selections} selections: the number cannot be negative")
        if self.selections > 0 and not self.epsilon_select > 0:
            raise UserError(
                f"a selection needs a budget above 0 (here {self.epsilon_select}): "
                "set --eps_select_ratio above 0"
            )


@dataclasses.dataclass(frozen=True)
class Done:
    """What a client has really done with its records so far.

    Attributes:
        first_round: whether it took part in round 1.
        later_rounds: how many of the later rounds it took part in.
        selections: how many cluster models it has selected.
    """

    first_round: bool = False
    later_rounds: int = 0
    selections: int = 0

    @classmethod
    def all_of(cls, schedule: Schedule) -> "Done":
        """Everything that the schedule allows."""
        return cls(True, schedule.rounds - 1, schedule.selections)


@dataclasses.dataclass(frozen=True)
class Steps:
    """So many DP-SGD steps, alike in sampling rate and noise multiplier."""

    count: int
    rate: float
    noise_multiplier: float


def steps_per_round(records: int, batch_size: int, local_epochs: int) -> int:
    """K * ceil(N / b): the steps of a round, for the accountant and the training loop alike."""
    return local_epochs * math.ceil(records / batch_size)


def dp_sgd_steps(
    schedule: Schedule,
    noise_multiplier: float,
    first_round_noise_multiplier: float | None = None,
    done: Done | None = None,
) -> list[Steps]:
    """Return the steps of round 1 and those of all later rounds (all of them, or those done)."""
    done = done or Done.all_of(schedule)
    if not 0 <= done.later_rounds < schedule.rounds:
        raise ValueError(f"{done.later_rounds} later rounds done of {schedule.rounds - 1}")
    if first_round_noise_multiplier is None:
        first_round_noise_multiplier = noise_multiplier

    def steps(rounds: int, batch_size: int, noise_multiplier: float) -> Steps:
        per_round = steps_per_round(schedule.records, batch_size, schedule.local_epochs)
        return Steps(rounds * per_round, batch_size / schedule.records, noise_multiplier)

    first = steps(int(done.first_round), schedule.first_batch_size, first_round_noise_multiplier)
    later = steps(done.later_rounds, schedule.batch_size, noise_multiplier)
    return [part for part in (first, later) if part.count > 0]


def epsilon_spent(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    first_round_noise_multiplier: float | None = None,
    done: Done | None = None,
) -> float:
    """Epsilon by RDP at the given delta: of the whole run, or of the part that is done."""
    return epsilon_and_order(schedule, noise_multiplier, delta, first_round_noise_multiplier, done)[
        0
    ]


def epsilon_and_order(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    first_round_noise_multiplier: float | None = None,
    done: Done | None = None,
) -> tuple[float, float]:
    """`epsilon_spent`, and the RDP order at which it was found."""
    rdp = composed_rdp(schedule, noise_multiplier, first_round_noise_multiplier, done)
    epsilon, order = dp_accounting.rdp.compute_epsilon(ORDERS, rdp, delta)
    return float(epsilon), float(order)


def composed_rdp(
    schedule: Schedule,
    noise_multiplier: float,
    first_round_noise_multiplier: float | None = None,
    done: Done | None = None,
) -> np.ndarray:
    """RDP at ORDERS of all mechanisms together: of the whole run, or of the part that is done."""
    steps = dp_sgd_steps(schedule, noise_multiplier, first_round_noise_multiplier, done)
    selections = (done or Done.all_of(schedule)).selections
    if not 0 <= selections <= schedule.selections:
        raise ValueError(f"{selections} selections done of {schedule.selections}")
    rdp = sum(
        (part.count * _rdp_of_step(part, schedule.adjacency) for part in steps),
        start=np.zeros_like(ORDERS),
    )
    return rdp + selections * _rdp_of_selection(schedule) if selections > 0 else rdp


def budget_shares(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    first_round_noise_multiplier: float | None = None,
) -> dict[str, float]:
    """What round 1, the later rounds and the selections take of the budget; together 1.

    They are shares of the RDP at the order of `epsilon_and_order`: RDP of several mechanisms adds
    up, while their epsilons do not.
    """
    arguments = schedule, noise_multiplier, delta, first_round_noise_multiplier
    _, order = epsilon_and_order(*arguments)
    at = list(ORDERS).index(order)
    steps = {
        "round 1": Done(first_round=True),
        "later rounds": Done(later_rounds=schedule.rounds - 1),
    }
    rdp = {
        stage: sum(
            part.count * float(_rdp_of_step(part, schedule.adjacency)[at])
            for part in dp_sgd_steps(schedule, noise_multiplier, first_round_noise_multiplier, done)
        )
        for stage, done in steps.items()
    }
    rdp["selections"] = schedule.selections * float(_rdp_of_selection(schedule)[at])
    return {stage: value / sum(rdp.values()) for stage, value in rdp.items()}


def _rdp_of_selection(schedule: Schedule) -> np.ndarray:
    """RDP of ONE selection at ORDERS.

    The exponential mechanism is epsilon_select^2/8-zCDP, under either adjacency, for its
    sensitivity 1/(N-1) holds under both. Its pure epsilon bounds its RDP at every order, too, and
    is the smaller of the two bounds where epsilon_select is large.
    """
    return np.minimum(ORDERS * schedule.epsilon_select**2 / 8, schedule.epsilon_select)


def _rdp_of_step(step: Steps, adjacency: Adjacency) -> np.ndarray:
    """RDP of ONE of these steps at ORDERS."""
    if step.rate == 1:
        # A full batch. Replacing a record moves the clipped sum by up to 2c, not c.
        sensitivity = 2 if adjacency is Adjacency.REPLACE_ONE else 1
        return _rdp(dp_accounting.GaussianDpEvent(step.noise_multiplier / sensitivity))
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        return _rdp_of_sampled_step(step.rate, step.noise_multiplier)
    # Replacing is removing and then adding: the weak triangle inequality of Mironov (2017),
    # proposition 11, at p = q = 2. A proven upper bound, not a tight one.
    removed = _rdp_of_sampled_step(step.rate, step.noise_multiplier, scale=2, shift=0)
    added = _rdp_of_sampled_step(step.rate, step.noise_multiplier, scale=2, shift=-1)
    return (ORDERS - 1 / 2) / (ORDERS - 1) * removed + added


@functools.lru_cache(maxsize=1024)
def _rdp_of_sampled_step(
    rate: float, noise_multiplier: float, scale: int = 1, shift: int = 0
) -> np.ndarray:
    """RDP of one Poisson-sampled Gaussian under add/remove, at scale * ORDERS + shift."""
    orders = scale * ORDERS + shift
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    rdp = _rdp(dp_accounting.PoissonSampledDpEvent(rate, gaussian), orders)
    return np.maximum(rdp, 0) + _SERIES_ERROR / (orders - 1)


def _rdp(event: dp_accounting.DpEvent, orders: np.ndarray = ORDERS) -> np.ndarray:
    return dp_accounting.rdp.RdpAccountant(orders).compose(event).rdp


@functools.lru_cache(maxsize=1024)
def noise_multiplier(
    schedule: Schedule,
    epsilon: float,
    delta: float,
    first_round_noise_multiplier: float | None = None,
) -> float:
    """Return the smallest z whose `epsilon_spent` is at most epsilon; never on the unsafe side.

    Args:
        schedule: the client's run.
        epsilon: the budget of the whole run; infinity means no privacy, and z = 0.
        delta: below 1/N.
        first_round_noise_multiplier: the z of round 1, if it is not to be that of all rounds.
    """
    if epsilon == math.inf:
        return 0.0
    _check_budget(schedule, epsilon, delta, first_round_noise_multiplier)

    def over_budget(log_z: float) -> float:
        spent = epsilon_spent(schedule, math.exp(log_z), delta, first_round_noise_multiplier)
        return spent - epsilon

    low, high = -1.0, 0.0
    while over_budget(high) > 0:
        low, high = high, high + 1
        if high > _LARGEST_LOG_NOISE_MULTIPLIER:
            raise UserError(
                f"--eps={epsilon:g} with --delta={delta:g} cannot be reached by any noise: "
                "raise --eps or --delta, or lower --eps_select_ratio"
            )
    while over_budget(low) <= 0:
        low, high = low - 1, low
    log_z = optimize.brentq(over_budget, low, high, xtol=_CALIBRATION_TOLERANCE)
    while over_budget(log_z) > 0:
        log_z += _CALIBRATION_TOLERANCE
    return math.exp(log_z)


def _check_budget(
    schedule: Schedule, epsilon: float, delta: float, first_round_noise_multiplier: float | None
) -> None:
    if not epsilon > 0:
        raise UserError(f"--eps={epsilon:g}: must be above 0 (inf for a run that is not private)")
    if not 0 < delta < 1 / schedule.records:
        raise UserError(
            f"--delta={delta:g}: must be above 0 and below 1/N = {1 / schedule.records:.3g} for a "
            f"client of {schedule.records} records, or publishing one record at random would do"
        )
    if first_round_noise_multiplier is not None:
        if not first_round_noise_multiplier > 0:
            raise UserError(
                f"--first_round_noise_multiplier={first_round_noise_multiplier:g}: must be above 0"
            )
        if schedule.rounds == 1:
            raise UserError(
                "--first_round_noise_multiplier leaves no round whose noise could follow from "
                "--eps: leave it out, or raise --rounds above 1"
            )
    # What does not depend on z: the selections, and round 1 if its noise is given.
    first_is_fixed = first_round_noise_multiplier is not None
    fixed = epsilon_spent(
        schedule,
        noise_multiplier=math.inf,
        delta=delta,
        first_round_noise_multiplier=first_round_noise_multiplier,
        done=Done(first_round=first_is_fixed, selections=schedule.selections),
    )
    if fixed >= epsilon:
        fixes, spenders = ["raise --eps"], []
        if schedule.selections > 0:
            spenders.append(f"{schedule.selections} selections")
            fixes.append("lower --eps_select_ratio")
        if first_is_fixed:
            spenders.append("round 1 at its given noise")
            fixes.append("raise --first_round_noise_multiplier")
        raise UserError(
            f"{' and '.join(spenders)} alone spend epsilon {fixed:.4g} of --eps={epsilon:g}: "
            f"nothing is left for training; {' or '.join(fixes)}"
        )
