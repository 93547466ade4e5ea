"""The federation that an algorithm works with: every client at once, one method per kind of round.

Binds the TFF computations to the silos and to the privacy plan, so that an algorithm says only who
trains which model. What a method returns is what the server sees, unless it says otherwise.
"""

import collections
import dataclasses
import functools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from rdpcfl_tff.errors import WorkerError
from rdpcfl_tff.federated import client_data, rounds, scoring
from rdpcfl_tff.privacy import accounting, dp_sgd, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan

_LOG = logging.getLogger(__name__)
# How many steps are measured to forecast a run's time: more of them where they are quick.
_QUICK_SECONDS = 1.0
_QUICK_STEPS, _SLOW_STEPS = 10, 4
_Answer = TypeVar("_Answer")


class Federation:
    """All clients of a run, of which some may be missing in a round.

    Attributes:
        silos: The folder of each client's silo, in the clients' order.
        records: What all silos have in common.
        engine: Computes the sums of clipped gradients, of the model that is trained.
        plan: What every client does with its records, and its noise.
        learning_rate: eta.
        clip_norm: c.
        key: Where all randomness of the clients comes from.
        dropout: The probability that a client is missing in a round.
        weighted: Whether less noisy updates count for more in an average.
        done: What each client has done with its records so far: the accountant's ledger.
        trained: How many clients trained in the last round.
        left_out: How many of them diverged, and are in no average.
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
        dropout: float = 0.0,
        weighted: bool = False,
    ):
        self.silos = tuple(silos)
        self.records = records
        self.engine = engine
        self.plan = plan
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.dropout = dropout
        self.weighted = weighted
        self.done = (accounting.Done(),) * len(self.silos)
        self.trained = 0
        self.left_out = 0
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
        self._begin_round(round_number)

        def ask(present: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            tasks = [self._task(client, assignment[client], round_number) for client in present]
            return self._round(len(models)).next(models, tasks)

        present, answer = self._ask(ask, lambda: self.present(round_number))
        if answer is None:
            return models
        trained, clients = answer
        self._end_round(round_number, len(present), sound=int(clients.sum()))
        return trained

    def train_personal(
        self,
        models: np.ndarray,
        anchor: np.ndarray,
        pull: float,
        round_number: int,
        clip_pull: bool = False,
    ) -> np.ndarray:
        """The models [n, p] after client i has trained model i, pulled towards the anchor [p].

        With `clip_pull` the pull is clipped together with each gradient. A client that is missing,
        or whose training diverges, keeps the model that it had.
        """
        self._begin_round(round_number)

        def ask(present: Sequence[int]) -> np.ndarray:
            tasks = [
                rounds.personal_task(models[client], self._task(client, 0, round_number))
                for client in present
            ]
            server = collections.OrderedDict(anchor=anchor, pull=pull)
            return np.stack(self._personal_round(clip_pull)(server, tasks))

        present, trained = self._ask(ask, lambda: self.present(round_number))
        if trained is None:
            return models
        sound = _sound(trained - models[list(present)])
        self._end_round(round_number, len(present), sound=int(sound.sum()))
        models = models.copy()
        models[np.array(present)[sound]] = trained[sound]
        return models

    def updates(self, model: np.ndarray, round_number: int) -> np.ndarray:
        """Every client's noised update [n, p] after training the same model [p].

        The row of a client that is missing, or whose training diverged, is NaN.
        """
        self._begin_round(round_number)

        def ask(present: Sequence[int]) -> np.ndarray:
            tasks = [self._task(client, 0, round_number) for client in present]
            return np.stack(self._updates()(model[np.newaxis], tasks))

        present, answer = self._ask(ask, lambda: self.present(round_number))
        updates = np.full((self.num_clients, len(model)), np.nan, np.float32)
        if answer is not None:
            updates[list(present)] = answer
        sound = _sound(updates)
        self._end_round(round_number, len(present), sound=int(sound.sum()))
        updates[~sound] = np.nan
        return updates

    def select(
        self, models: np.ndarray, assignment: Sequence[int], round_number: int
    ) -> tuple[int, ...]:
        """The model that each client has chosen privately, by its accuracy on its train set.

        A client that is missing keeps the model that it is assigned to.
        """

        def ask(present: Sequence[int]) -> Sequence[int]:
            tasks = [
                scoring.selection_task(
                    self.silos[client],
                    self.plan.schedules[client].records,
                    self.plan.schedules[client].epsilon_select,
                    self._seed(randomness.Purpose.SELECTION, round_number, client),
                )
                for client in present
            ]
            return self._selection(len(models))(models, tasks)

        for client in self.present(round_number):
            selections = self.done[client].selections + 1
            self._count(client, dataclasses.replace(self.done[client], selections=selections))
        present, indices = self._ask(ask, lambda: self.present(round_number))
        chosen = list(assignment)
        for client, index in zip(present, indices or (), strict=True):
            chosen[client] = int(index)
        return tuple(chosen)

    def evaluate(self, models: np.ndarray, assignment: Sequence[int], split: str) -> np.ndarray:
        """Each client's exact accuracy on its own model: private, for simulations only.

        NaN for a client whose silo is missing or damaged.
        """

        def ask(whole: Sequence[int]) -> Sequence[float]:
            tasks = [
                scoring.evaluation_task(self.silos[client], assignment[client]) for client in whole
            ]
            return self._evaluation(len(models), split)(models, tasks)

        whole, answer = self._ask(ask, lambda: self._whole(split))
        accuracies = np.full(self.num_clients, np.nan)
        if answer is not None:
            accuracies[list(whole)] = answer
        return accuracies

    # One answer for the whole round, unless a silo goes away in the middle of it.
    @functools.lru_cache(maxsize=1)  # noqa: B019 (a federation lives as long as its run)
    def present(self, round_number: int) -> tuple[int, ...]:
        """The clients that take part in a round: those that do not drop out, with a whole silo."""
        present = []
        for client in range(self.num_clients):
            word, _ = self._seed(randomness.Purpose.DROPOUT, round_number, client)
            if word % 2**32 < self.dropout * 2**32:
                continue
            if not self._has(client, "train"):
                _LOG.warning(
                    "round %d goes on without client %d: its silo %s is missing or damaged",
                    round_number,
                    client,
                    self.silos[client],
                )
                continue
            present.append(client)
        return tuple(present)

    def _whole(self, split: str) -> list[int]:
        return [client for client in range(self.num_clients) if self._has(client, split)]

    def _has(self, client: int, split: str) -> bool:
        """Whether a client's records can be read; a remote worker's are taken to be there."""
        silo = self.silos[client]
        return not os.path.isabs(silo) or self.records.is_whole(silo, split)

    def seconds_per_step(self) -> float:
        """How long one step of every client takes on this machine, measured on blank records.

        Batches are drawn as in training: that their size varies takes time. From the difference of
        two calls, because a call takes time for the updates, too.
        """
        with tempfile.TemporaryDirectory(prefix="rdpcfl_tff-") as silo:
            self.records.write_blank(silo, "train", self.plan.schedules[0].records)
            self._seconds_of_steps(silo, 1)  # it also compiles
            one_step = self._seconds_of_steps(silo, 1)
            steps = _QUICK_STEPS if one_step < _QUICK_SECONDS else _SLOW_STEPS
            all_steps = self._seconds_of_steps(silo, steps)
        return max(0.0, all_steps - one_step) / (steps - 1)

    def _seconds_of_steps(self, silo: str, steps: int) -> float:
        schedule = self.plan.schedules[0]
        task = dp_sgd.LocalTask(schedule.records, schedule.batch_size, steps, 0.0, 1.0, 1.0, (0, 0))
        tasks = [
            rounds.client_task(silo, 0, task._replace(seed=(0, client)))
            for client in range(self.num_clients)
        ]
        start = time.monotonic()
        self._updates()(self.initial_parameters[np.newaxis], tasks)
        return time.monotonic() - start

    def _ask(
        self, ask: Callable[[Sequence[int]], _Answer], clients: Callable[[], Sequence[int]]
    ) -> tuple[Sequence[int], _Answer | None]:
        """Asks the clients, and again without those whose silo goes away meanwhile.

        Returns who answered and the answers, None if nobody is there. Whoever is asked twice draws
        the same noise twice: nothing is released a second time.
        """
        there = tuple(clients())
        while there:
            try:
                return there, ask(there)
            except WorkerError:
                self.present.cache_clear()
                # Nobody may join: only those who were there at first are paid for.
                still_there = tuple(client for client in clients() if client in there)
                if still_there == there:
                    raise
                there = still_there
        return there, None

    def _begin_round(self, round_number: int) -> None:
        """Notes who trains: from here on it is paid for, also if the silo goes away meanwhile."""
        self.trained = self.left_out = 0
        for client in self.present(round_number):
            if round_number == 1:
                self._count(client, dataclasses.replace(self.done[client], first_round=True))
            else:
                later_rounds = self.done[client].later_rounds + 1
                self._count(
                    client, dataclasses.replace(self.done[client], later_rounds=later_rounds)
                )

    def _count(self, client: int, done: accounting.Done) -> None:
        self.done = (*self.done[:client], done, *self.done[client + 1 :])

    def _end_round(self, round_number: int, trained: int, sound: int) -> None:
        self.trained, self.left_out = trained, trained - sound
        if self.left_out > 0:
            _LOG.warning(
                "round %d: the training of %d clients diverged, and they are left out; lower --lr",
                round_number,
                self.left_out,
            )

    def _task(self, client: int, model: int, round_number: int) -> collections.OrderedDict:
        local_task = self._local_task(client, round_number)
        weight = self.plan.average_weights(round_number)[client] if self.weighted else 1.0
        return rounds.client_task(self.silos[client], model, local_task, float(weight))

    def _local_task(self, client: int, round_number: int) -> dp_sgd.LocalTask:
        schedule = self.plan.schedules[client]
        batch_size = schedule.first_batch_size if round_number == 1 else schedule.batch_size
        return dp_sgd.LocalTask(
            records=schedule.records,
            batch_size=batch_size,
            steps=accounting.steps_per_round(schedule.records, batch_size, schedule.local_epochs),
            learning_rate=self.learning_rate,
            clip_norm=self.clip_norm,
            noise_multiplier=self.plan.noise_multiplier(client, round_number),
            seed=self._seed(randomness.Purpose.SAMPLING_AND_NOISE, round_number, client),
        )

    def _seed(self, purpose: randomness.Purpose, round_number: int, client: int) -> tuple[int, int]:
        return randomness.stream_seed(self._key, purpose, round=round_number, client=client)

    # Building a computation takes a second, so each is built once per number of models.
    @functools.cache  # noqa: B019 (a federation lives as long as its run)
    def _round(self, num_models: int):
        return rounds.build_round(num_models, self.records, self.engine, self.plan.private)

    @functools.cache  # noqa: B019
    def _personal_round(self, clip_pull: bool):
        return rounds.build_personal_round(self.records, self.engine, self.plan.private, clip_pull)

    @functools.cache  # noqa: B019
    def _updates(self):
        return rounds.build_updates(self.records, self.engine, self.plan.private)

    @functools.cache  # noqa: B019
    def _selection(self, num_models: int):
        return scoring.build_selection(num_models, self.engine.model, self.records)

    @functools.cache  # noqa: B019
    def _evaluation(self, num_models: int, split: str):
        return scoring.build_evaluation(num_models, self.engine.model, self.records, split)


def _sound(updates: np.ndarray) -> np.ndarray:
    """Which updates [n, p] are those of a training that did not diverge."""
    return (np.abs(updates) <= rounds.LARGEST_UPDATE).all(axis=1)
