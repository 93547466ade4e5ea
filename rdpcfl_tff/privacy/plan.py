"""The privacy plan: what every client does with its records, and the noise that pays for it.

What is accounted is what runs: the training reads its batch sizes, steps and selections from the
same schedules that the noise is calibrated on. All of it is public.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rdpcfl_tff.privacy import accounting
from rdpcfl_tff.privacy.statement import NoiseSource, privacy_statement


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """Every client's schedule and noise multiplier.

    Attributes:
        epsilon: The budget of each client; infinity means a run that is not private.
        delta: The other half of the budget.
        schedules: One per client.
        noise_multipliers: z of each client.
    """

    epsilon: float
    delta: float
    schedules: tuple[accounting.Schedule, ...]
    noise_multipliers: tuple[float, ...]

    @classmethod
    def calibrate(
        cls, schedules: Sequence[accounting.Schedule], epsilon: float, delta: float
    ) -> "PrivacyPlan":
        """The plan with the smallest noise that keeps every client within (epsilon, delta)."""
        return cls(
            epsilon,
            delta,
            tuple(schedules),
            tuple(
                _as_float32_upwards(accounting.noise_multiplier(one, epsilon, delta))
                for one in schedules
            ),
        )

    @property
    def private(self) -> bool:
        """Whether anything is clipped and noised at all."""
        return not math.isinf(self.epsilon)

    def statements(self, clip_norm: float, noise_source: NoiseSource) -> list[dict[str, Any]]:
        """The privacy statement of every client; clients that are alike share one."""
        alike: dict[tuple[accounting.Schedule, float], list[int]] = {}
        for client, key in enumerate(zip(self.schedules, self.noise_multipliers, strict=True)):
            alike.setdefault(key, []).append(client)
        return [
            {"clients": clients}
            | privacy_statement(
                schedule,
                delta=self.delta,
                noise_multiplier=noise_multiplier,
                clip_norm=clip_norm,
                clients=len(self.schedules),
                noise_source=noise_source,
            )
            for (schedule, noise_multiplier), clients in alike.items()
        ]

    def epsilon_spent(self, rounds_done: int, selections_done: int) -> float:
        """The largest epsilon that any client has spent after so many rounds and selections."""
        if not self.private:
            return math.inf
        return max(
            accounting.epsilon_spent(
                schedule,
                noise_multiplier,
                self.delta,
                rounds_done=rounds_done,
                selections_done=selections_done,
            )
            for schedule, noise_multiplier in set(
                zip(self.schedules, self.noise_multipliers, strict=True)
            )
        )


def _as_float32_upwards(value: float) -> float:
    """The training computes in float32: the smallest such number that is not below the value."""
    rounded = np.float32(value)
    return float(rounded if rounded >= value else np.nextafter(rounded, np.float32(np.inf)))
