"""The federation that an algorithm works with: every client at once, one method per kind of round.

Binds the TFF computations to the silos and to the privacy plan, so that an algorithm says only who
trains which model. What a method returns is what the server sees, unless it says otherwise.
"""

import collections
import functools
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from rdpcfl_tff.federated import client_data, rounds, scoring
from rdpcfl_tff.privacy import accounting, dp_sgd, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan


class Federation:
    """All clients of a run.

    Attributes:
        silos: The folder of each client's silo, in the clients' order.
        records: What all silos have in common.
        engine: Computes the sums of clipped gradients, of the model that is trained.
        plan: What every client does with its records, and its noise.
        learning_rate: eta.
        clip_norm: c.
        key: Where all randomness of the clients comes from.
    """

    def __init__(
        self,
        silos: Sequence[str],
        records: client_data.RecordFormat,
        engine: dp_sgd.Engine,
        plan: PrivacyPlan,
        learning_rate: float,
        clip_norm: float,
        key: bytes,
    ):
        self.silos = tuple(silos)
        self.records = records
        self.engine = engine
        self.plan = plan
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self._key = key

    @property
    def num_clients(self) -> int:
        """n."""
        return len(self.silos)

    @property
    def initial_parameters(self) -> np.ndarray:
        """theta_init, float32 [p]."""
        return self.engine.model.initial_parameters

    def train(self, models: np.ndarray, assignment: Sequence[int], round_number: int) -> np.ndarray:
        """The models [M, p] after one round in which client i trains model `assignment[i]`."""
        return self._round(len(models)).next(models, self._tasks(assignment, round_number))

    def train_personal(
        self, models: np.ndarray, anchor: np.ndarray, pull: float, round_number: int
    ) -> np.ndarray:
        """The models [n, p] after client i has trained model i, pulled towards the anchor [p]."""
        tasks = [
            rounds.personal_task(model, task)
            for model, task in zip(
                models, self._tasks([0] * self.num_clients, round_number), strict=True
            )
        ]
        server = collections.OrderedDict(anchor=anchor, pull=pull)
        return np.stack(self._personal_round()(server, tasks))

    def updates(self, model: np.ndarray, round_number: int) -> np.ndarray:
        """Every client's noised update [n, p] after training the same model [p]."""
        tasks = self._tasks([0] * self.num_clients, round_number)
        return np.stack(self._updates()(model[np.newaxis], tasks))

    def select(self, models: np.ndarray, round_number: int) -> tuple[int, ...]:
        """The model that each client has chosen privately, by its accuracy on its train set."""
        selections = [
            scoring.selection_task(
                silo,
                schedule.records,
                schedule.epsilon_select,
                self._seed(randomness.Purpose.SELECTION, round_number, client),
            )
            for client, (silo, schedule) in enumerate(
                zip(self.silos, self.plan.schedules, strict=True)
            )
        ]
        return tuple(int(index) for index in self._selection(len(models))(models, selections))

    def evaluate(self, models: np.ndarray, assignment: Sequence[int], split: str) -> np.ndarray:
        """Each client's exact accuracy on its own model: private, for simulations only."""
        evaluations = [
            scoring.evaluation_task(silo, model)
            for silo, model in zip(self.silos, assignment, strict=True)
        ]
        return np.array(self._evaluation(len(models), split)(models, evaluations))

    def seconds_per_step(self) -> float:
        """How long one step of every client takes on this machine, measured on blank records."""
        batch_size, steps = self.plan.schedules[0].batch_size, 10
        with tempfile.TemporaryDirectory(prefix="rdpcfl_tff-") as silo:
            self.records.write_blank(silo, "train", batch_size)
            task = dp_sgd.LocalTask(batch_size, batch_size, steps, 0.0, 1.0, 1.0, (0, 0))
            tasks = [rounds.client_task(silo, 0, task)] * self.num_clients
            model = self.initial_parameters[np.newaxis]
            self._updates()(model, tasks)  # the first call also compiles
            start = time.monotonic()
            self._updates()(model, tasks)
        return (time.monotonic() - start) / steps

    def _tasks(self, assignment: Sequence[int], round_number: int) -> list:
        return [
            rounds.client_task(silo, model, self._local_task(client, round_number))
            for client, (silo, model) in enumerate(zip(self.silos, assignment, strict=True))
        ]

    def _local_task(self, client: int, round_number: int) -> dp_sgd.LocalTask:
        schedule = self.plan.schedules[client]
        batch_size = schedule.first_batch_size if round_number == 1 else schedule.batch_size
        return dp_sgd.LocalTask(
            records=schedule.records,
            batch_size=batch_size,
            steps=accounting.steps_per_round(schedule.records, batch_size, schedule.local_epochs),
            learning_rate=self.learning_rate,
            clip_norm=self.clip_norm,
            noise_multiplier=self.plan.noise_multipliers[client],
            seed=self._seed(randomness.Purpose.SAMPLING_AND_NOISE, round_number, client),
        )

    def _seed(self, purpose: randomness.Purpose, round_number: int, client: int) -> tuple[int, int]:
        return randomness.stream_seed(self._key, purpose, round=round_number, client=client)

    # Building a computation takes a second, so each is built once per number of models.
    @functools.cache  # noqa: B019 (a federation lives as long as its run)
    def _round(self, num_models: int):
        return rounds.build_round(num_models, self.records, self.engine, self.plan.private)

    @functools.cache  # noqa: B019
    def _personal_round(self):
        return rounds.build_personal_round(self.records, self.engine, self.plan.private)

    @functools.cache  # noqa: B019
    def _updates(self):
        return rounds.build_updates(self.records, self.engine, self.plan.private)

    @functools.cache  # noqa: B019
    def _selection(self, num_models: int):
        return scoring.build_selection(num_models, self.engine.model, self.records)

    @functools.cache  # noqa: B019
    def _evaluation(self, num_models: int, split: str):
        return scoring.build_evaluation(num_models, self.engine.model, self.records, split)
