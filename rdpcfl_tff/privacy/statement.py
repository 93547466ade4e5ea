"""The privacy statement of a client: what is promised, by which mechanisms, and what is not.

Appendix "Formal privacy guarantees" of the paper, filled in with the numbers of one run.
Nothing in it is private: it may be published with the results.
"""

import enum
import math
import textwrap
from typing import Any

from rdpcfl_tff.privacy import accounting, second_opinion
from rdpcfl_tff.privacy.accounting import Adjacency, Schedule


class NoiseSource(enum.Enum):
    """Where the key of all sampling and noise came from."""

    SEED = "seed"
    OPERATING_SYSTEM = "os"


_NOISE_SOURCES = {
    NoiseSource.SEED: (
        "reproducible, from the run's seed: the guarantee holds only against those who do not "
        "know the seed (use --noise_seed=os for data that must be protected)"
    ),
    NoiseSource.OPERATING_SYSTEM: (
        "a key from the operating system, kept apart from the results; whoever has it can undo "
        "the noise"
    ),
}

_ADJACENCIES = {
    Adjacency.ADD_OR_REMOVE_ONE: "add or remove one record",
    Adjacency.REPLACE_ONE: "replace one record",
}

_PROTECTED = (
    "everything the client sends in all rounds together: its model updates and its selected "
    "clusters",
    "whatever is computed from these: cluster models, cluster assignments, mixture scores",
)

_NOT_PROTECTED = (
    "what all records of the client have in common, such as the cluster it belongs to",
    "somebody who has several records (the guarantee is for one of them)",
    "records used outside this run: other runs, tuning, validation and test sets",
    "what a simulation writes for its user only: true clusters and exact accuracies",
    "a client that is attacked on its own machine, by timing, or by the last bits of its floats",
)


def privacy_statement(
    schedule: Schedule,
    *,
    delta: float,
    noise_multiplier: float,
    clip_norm: float,
    clients: int,
    noise_source: NoiseSource,
    first_round_noise_multiplier: float | None = None,
) -> dict[str, Any]:
    """Return the statement of one client (or of all clients alike) as a dictionary for JSON."""
    epsilon, order = accounting.epsilon_and_order(
        schedule, noise_multiplier, delta, first_round_noise_multiplier
    )
    epsilon_pld = second_opinion.epsilon_spent_pld(
        schedule, noise_multiplier, delta, first_round_noise_multiplier
    )
    private = math.isfinite(epsilon)
    steps = accounting.dp_sgd_steps(schedule, noise_multiplier, first_round_noise_multiplier)
    mechanisms: list[dict[str, Any]] = [
        {
            "mechanism": "Gaussian" if part.rate == 1 else "Poisson-sampled Gaussian",
            "times": part.count,
            "sampling_rate": part.rate,
            "noise_multiplier": part.noise_multiplier,
        }
        for part in steps
    ]
    if schedule.selections > 0:
        mechanisms.append(
            {
                "mechanism": "exponential",
                "times": schedule.selections,
                "epsilon": _finite(schedule.epsilon_select),
                "score": "accuracy on all training records",
                "sensitivity": 1 / (schedule.records - 1),
            }
        )
    return {
        "private": private,
        "unit": "one training record of one client",
        "adjacency": schedule.adjacency.value,
        "epsilon": {"rdp": _finite(epsilon), "pld": _finite(epsilon_pld)},
        "delta": delta,
        "orders": {
            "smallest": float(accounting.ORDERS[0]),
            "largest": float(accounting.ORDERS[-1]),
            "count": len(accounting.ORDERS),
            "optimal": order if private else None,
        },
        "sampler": "Poisson: an independent coin for every record in every step",
        "mechanisms": mechanisms,
        "noise_source": noise_source.value,
        "public": {
            "records": schedule.records,
            "batch_size": schedule.batch_size,
            "first_batch_size": schedule.first_batch_size,
            "local_epochs": schedule.local_epochs,
            "rounds": schedule.rounds,
            "clip_norm": clip_norm,
            "noise_multiplier": noise_multiplier,
            "first_round_noise_multiplier": steps[0].noise_multiplier,
            "clients": clients,
        },
        "protected": list(_PROTECTED) if private else [],
        "not_protected": list(_NOT_PROTECTED) if private else ["anything"],
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity; null stands for "no bound"."""
    return value if value is not None and math.isfinite(value) else None


def as_text(statement: dict[str, Any]) -> str:
    """Return the statement for people, in lines of at most 100 characters."""
    title, facts = in_words(statement)
    return "\n".join(
        [title]
        + [
            textwrap.fill(f"{name:15}{fact}", 100, subsequent_indent=" " * 15)
            for name, fact in facts
        ]
    )


def in_words(statement: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return the promise in one line, and the facts behind it, each with its name."""
    epsilon, orders, public = (statement[key] for key in ("epsilon", "orders", "public"))
    if statement["private"]:
        by_rdp = _up(epsilon["rdp"])
        by_pld = "none" if epsilon["pld"] is None else _up(epsilon["pld"])
        title = (
            f"({by_rdp}, {statement['delta']:g})-differentially private, for {statement['unit']}"
        )
        budget = [
            ("epsilon", f"{by_rdp} by RDP, {by_pld} by PLD; delta {statement['delta']:g}"),
            (
                "RDP orders",
                f"{orders['count']} from {orders['smallest']:g} to {orders['largest']:g}, "
                f"best {orders['optimal']:g}",
            ),
        ]
    else:
        title, budget = "NOT private: the records of the clients are not protected at all", []
    facts = [
        ("unit", statement["unit"]),
        ("adjacency", _ADJACENCIES[Adjacency(statement["adjacency"])]),
        *budget,
        ("sampler", statement["sampler"]),
        *(("mechanism", _mechanism(mechanism)) for mechanism in statement["mechanisms"]),
        ("noise source", _NOISE_SOURCES[NoiseSource(statement["noise_source"])]),
        (
            "public",
            f"N={public['records']}, b={public['batch_size']} "
            f"(round 1: {public['first_batch_size']}), K={public['local_epochs']}, "
            f"E={public['rounds']}, c={public['clip_norm']:g}, "
            f"z={public['noise_multiplier']:.4g} "
            f"(round 1: {public['first_round_noise_multiplier']:.4g}), n={public['clients']}",
        ),
        *(("protected", item) for item in statement["protected"]),
        *(("not protected", item) for item in statement["not_protected"]),
    ]
    return title, facts


def _up(epsilon: float) -> str:
    """Three decimals, rounded up: a printed epsilon is never smaller than the true one."""
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}"


def _mechanism(mechanism: dict[str, Any]) -> str:
    times = f"{mechanism['times']} x {mechanism['mechanism']}"
    if mechanism["mechanism"] == "exponential":
        budget = "infinite" if mechanism["epsilon"] is None else f"{mechanism['epsilon']:.4g}"
        return (
            f"{times}, epsilon {budget} each, score: {mechanism['score']}, "
            f"sensitivity {mechanism['sensitivity']:.4g}"
        )
    return (
        f"{times}, sampling rate {mechanism['sampling_rate']:.4g}, "
        f"noise multiplier {mechanism['noise_multiplier']:.4g}"
    )
