"""The privacy plan: what every client does with its records, and the noise that pays for it.

What is accounted is what runs: the training reads its batch sizes, steps and selections from the
same schedules that the noise is calibrated on. All of it is public.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import accounting
from rdpcfl_tff.privacy.statement import NoiseSource, privacy_statement


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """Every client's schedule and noise multiplier.

    Attributes:
        epsilons: The budget of each client; infinity for all means a run that is not private.
        deltas: The other half of each budget.
        schedules: One per client.
        noise_multipliers: z of each client.
        first_round_noise_multipliers: z of each client in round 1; by default that of all rounds.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    schedules: tuple[accounting.Schedule, ...]
    noise_multipliers: tuple[float, ...]
    first_round_noise_multipliers: tuple[float, ...] = ()

    def __post_init__(self):
        if not self.first_round_noise_multipliers:
            object.__setattr__(self, "first_round_noise_multipliers", self.noise_multipliers)

    @classmethod
    def calibrate(
        cls,
        schedules: Sequence[accounting.Schedule],
        epsilon: float | Sequence[float],
        delta: float | Sequence[float],
        first_round_noise_multiplier: float | None = None,
        names: Sequence[str] = (),
    ) -> "PrivacyPlan":
        """The plan with the smallest noise that keeps every client within (epsilon, delta).

        If the noise of round 1 is given, then the other rounds have what the rest of the budget
        allows: both are accounted together. Epsilon and delta are one for all clients, or one for
        each; the clients' names are for errors.
        """
        epsilons, deltas = (_per_client(value, len(schedules)) for value in (epsilon, delta))
        if len({math.isinf(one) for one in epsilons}) > 1:
            raise UserError(
                "some clients have an epsilon of their own and the others have none: give --eps, "
                "which is for all clients without their own"
            )
        first = first_round_noise_multiplier
        if first is not None:
            first = _as_float32_upwards(first)
        noise_multipliers = []
        for client, budgeted in enumerate(zip(schedules, epsilons, deltas, strict=True)):
            try:
                noise_multipliers.append(accounting.noise_multiplier(*budgeted, first))
            except UserError as error:
                raise UserError(f"client {names[client]}: {error}" if names else error) from None
        return cls(
            epsilons,
            deltas,
            tuple(schedules),
            tuple(map(_as_float32_upwards, noise_multipliers)),
            () if first is None else (first,) * len(schedules),
        )

    def noise_multiplier(self, client: int, round_number: int) -> float:
        """The z that the client's training has in the round."""
        first = round_number == 1
        return (self.first_round_noise_multipliers if first else self.noise_multipliers)[client]

    def noise_of_updates(self, round_number: int) -> np.ndarray:
        """How noisy each client's update is, up to a common factor.

        The noise of a step is c z / b, and the steps add up: eta c z sqrt(steps) / b.
        """
        noise = []
        for client, schedule in enumerate(self.schedules):
            b = schedule.first_batch_size if round_number == 1 else schedule.batch_size
            steps = accounting.steps_per_round(schedule.records, b, schedule.local_epochs)
            noise.append(self.noise_multiplier(client, round_number) * math.sqrt(steps) / b)
        return np.array(noise)

    def average_weights(self, round_number: int) -> np.ndarray:
        """What makes an average least noisy: inverse variances, the largest of them scaled to 1.

        All are 1 without noise.
        """
        noise = self.noise_of_updates(round_number)
        return (noise.min() / noise) ** 2 if noise.all() else np.ones_like(noise)

    @property
    def private(self) -> bool:
        """Whether anything is clipped and noised at all."""
        return not math.isinf(max(self.epsilons))

    def statements(self, clip_norm: float, noise_source: NoiseSource) -> list[dict[str, Any]]:
        """The privacy statement of every client; clients that are alike share one."""
        alike: dict[tuple[accounting.Schedule, float, float, float], list[int]] = {}
        for client, key in enumerate(self._accounted()):
            alike.setdefault(key, []).append(client)
        return [
            {"clients": clients}
            | privacy_statement(
                schedule,
                delta=delta,
                noise_multiplier=noise_multiplier,
                first_round_noise_multiplier=first,
                clip_norm=clip_norm,
                clients=len(self.schedules),
                noise_source=noise_source,
            )
            for (schedule, noise_multiplier, first, delta), clients in alike.items()
        ]

    def epsilon_spent(self, done: Sequence[accounting.Done]) -> float:
        """The largest epsilon that any client has spent, from what each of them has done."""
        if not self.private:
            return math.inf
        return max(
            accounting.epsilon_spent(schedule, noise_multiplier, delta, first, so_far)
            for (schedule, noise_multiplier, first, delta), so_far in set(
                zip(self._accounted(), done, strict=True)
            )
        )

    def _accounted(self) -> Iterator[tuple[accounting.Schedule, float, float, float]]:
        """Each client's schedule, z, z of round 1, and delta."""
        return zip(
            self.schedules,
            self.noise_multipliers,
            self.first_round_noise_multipliers,
            self.deltas,
            strict=True,
        )


def _per_client(value: float | Sequence[float], clients: int) -> tuple[float, ...]:
    """The same for every client, unless each has its own already."""
    return tuple(value) if isinstance(value, Sequence) else (value,) * clients


def _as_float32_upwards(value: float) -> float:
    """The training computes in float32: the smallest such number that is not below the value."""
    rounded = np.float32(value)
    return float(rounded if rounded >= value else np.nextafter(rounded, np.float32(np.inf)))
