"""Figures that hold the paper's theory against real updates: its two lemmas, and EM's convergence.

All of them look at one set of first rounds, in small silos, over a range of batch sizes. Noise-free
updates and true clusters are looked at, so all of these are for simulations only.
"""

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.plots import style
from experiments.plots.study import MIXTURES, Study, fit
from rdpcfl_tff.clustering import overlap
from rdpcfl_tff.privacy import accounting, update_variance
from rdpcfl_tff.privacy.plan import PrivacyPlan

if TYPE_CHECKING:
    from experiments.first_updates import FirstRound

# With this budget a full batch shows the clusters; with the next one they overlap measurably.
EPSILON = 15.0
SMALL_EPSILON = 0.5
FIRST_BATCHES = (16, 32, 64, 128, 256)
LATER_BATCHES = (8, 16, 32, 64, 128)
# So many gradients are looked at, to see whether clipping is effective.
NORMS = 200


def em_iterations_table(study: Study) -> pd.DataFrame:
    """EM's steps for both mixtures, with M given, for every b1 and draw."""
    first_round = study.first_round(small=True)
    return pd.DataFrame(
        {
            "first_batch_size": size,
            "draw": draw,
            "mixture": name,
            "em_iterations": mixture.em_iterations,
            "mss": mixture.mss,
            "exact": match.exact,
        }
        for size in _first_batches(first_round)
        for draw in range(study.draws)
        for name, mixture, match in fit(
            first_round.updates(first_round.plan(EPSILON, first_batch_size=size), draw),
            first_round,
        )
    )


def draw_em_iterations(table: pd.DataFrame) -> Figure:
    """The mean over draws, and each draw, a line per mixture."""
    figure, (axes,) = style.panels(1, width=4.5)
    for index, name in enumerate(MIXTURES):
        steps = table[table["mixture"] == name].groupby("first_batch_size")["em_iterations"]
        axes.plot(
            steps.mean(),
            color=style.COLOURS[index],
            marker=style.MARKERS[index],
            label=f"{name} mixture",
        )
        mine = table[table["mixture"] == name]
        axes.plot(
            mine["first_batch_size"],
            mine["em_iterations"],
            ".",
            color=style.COLOURS[index],
            alpha=0.35,
        )
    style.log_ticks(axes, "x", table["first_batch_size"])
    axes.set(xlabel="b1 (the last is the full batch)", ylabel="EM iterations")
    style.log_numbers(axes, "y")
    axes.legend()
    return figure


def centre_distance_table(study: Study) -> pd.DataFrame:
    """The distance between the centres of every two clusters, without noise, for every b1."""
    first_round = study.first_round(small=True)
    rows = []
    for size in _first_batches(first_round):
        centres = _centres(first_round, size)
        rows += [
            {
                "first_batch_size": size,
                "steps": _steps(first_round, size),
                "clusters": f"{one}-{two}",
                "distance": float(np.linalg.norm(centres[one] - centres[two])),
            }
            for one, two in itertools.combinations(range(len(centres)), 2)
        ]
    table = pd.DataFrame(rows)
    slopes = {
        pair: np.polyfit(np.log(group["first_batch_size"]), np.log(group["distance"]), 1)[0]
        for pair, group in table.groupby("clusters")
    }
    return table.assign(slope=table["clusters"].map(slopes))


def draw_centre_distance(table: pd.DataFrame) -> Figure:
    """Log-log, a line per pair of clusters, beside the slope of -1 that the paper's proof uses."""
    figure, (axes,) = style.panels(1, width=4.8)
    for index, (pair, line) in enumerate(table.groupby("clusters")):
        axes.plot(
            line["first_batch_size"],
            line["distance"],
            color=style.COLOURS[index % len(style.COLOURS)],
            marker=style.MARKERS[index % len(style.MARKERS)],
            label=f"clusters {pair}: slope {line['slope'].iloc[0]:.2f}",
        )
    sizes = np.array(sorted(table["first_batch_size"].unique()))
    start = table[table["first_batch_size"] == sizes[0]]["distance"].max()
    axes.plot(sizes, start * sizes[0] / sizes, color="grey", linestyle=":", label="slope -1")
    style.log_ticks(axes, "x", table["first_batch_size"])
    axes.set(xlabel="b1 (the last is the full batch)", ylabel="distance of centres", yscale="log")
    axes.legend()
    return figure


def variance_table(study: Study) -> pd.DataFrame:
    """The first lemma beside the variance of real updates, in round 1 and in a later round."""
    first_round = study.first_round(small=True)
    full = first_round.records
    mean_gradients = np.linalg.norm(first_round.sums, axis=1) / full
    norms = first_round.gradient_norms(client=0, number=min(full, NORMS))
    settings = [
        ("1", size, first_round.plan(EPSILON, first_batch_size=size))
        for size in _first_batches(first_round)
    ]
    for size in LATER_BATCHES:
        if size <= full:
            plan = first_round.plan(EPSILON, batch_size=size)
            settings += [("1", full, plan), (">1", size, _as_later_round(plan))]
    rows = []
    for name, size, plan in settings:
        local = _local_round(first_round, size, plan)
        simple = update_variance.noise_variance(local)
        unsimplified = update_variance.update_variance(local, float(mean_gradients.mean()))
        measured = _measured_variance(first_round, plan)
        rows.append(
            {
                "round": name,
                "b": size,
                "later_batch_size": plan.schedules[0].batch_size,
                "noise_multiplier": plan.noise_multipliers[0],
                "steps": _steps(first_round, size),
                "lemma": simple,
                "unsimplified": unsimplified,
                "measured": measured,
                "measured_over_lemma": measured / simple,
                "measured_over_unsimplified": measured / unsimplified,
                "clipped_at_start": np.mean(norms > first_round.config.clip_norm),
            }
        )
    return pd.DataFrame(rows).drop_duplicates(["round", "b", "later_batch_size"])


def draw_variance(table: pd.DataFrame) -> Figure:
    """Three panels: round 1 against b1 and against b>1, a later round against b>1."""
    figure, panels = style.panels(3)
    full = table[table["round"] == "1"]["b"].max()
    usual = table[(table["round"] == "1") & (table["b"] < full)]["later_batch_size"].iloc[0]
    first = table[table["round"] == "1"]
    for axes, rows, x, title in (
        (panels[0], first[first["later_batch_size"] == usual], "b", f"round 1, b>1 = {usual}"),
        (panels[1], first[first["b"] == full], "later_batch_size", "round 1, full batch"),
        (panels[2], table[table["round"] == ">1"], "later_batch_size", "a round after it"),
    ):
        rows = rows.sort_values(x)
        axes.plot(rows[x], rows["lemma"], color=style.COLOURS[0], label="lemma")
        axes.plot(
            rows[x],
            rows["unsimplified"],
            ":",
            color=style.COLOURS[2],
            label="its proof, unsimplified",
        )
        axes.plot(
            rows[x], rows["measured"], style.MARKERS[1], color=style.COLOURS[1], label="measured"
        )
        style.log_ticks(axes, "x", rows[x])
        axes.set(xlabel="b1" if x == "b" else "b>1", yscale="log", title=title)
    panels[0].set_ylabel("variance of an update")
    panels[0].legend()
    return figure


def overlap_table(study: Study) -> pd.DataFrame:
    """The second lemma beside the clusters of real updates, for every b1: means over all pairs.

    Updates are looked at along the line through two true centres. The measured score is the
    distance over twice the standard deviation there, within a cluster; the measured overlap is the
    share of updates beyond the middle, added up for the two clusters. A server does not know that
    line: the MSS of the paper's mixture, and how often it found the clusters, stand beside.
    """
    first_round = study.first_round(small=True)
    sizes = _first_batches(first_round)
    rows = []
    for epsilon in (EPSILON, SMALL_EPSILON):
        for size in sizes:
            plan = first_round.plan(epsilon, first_batch_size=size)
            draws = [first_round.updates(plan, draw) for draw in range(study.draws)]
            variance = update_variance.noise_variance(_local_round(first_round, size, plan))
            pairs = _pairs(first_round, _centres(first_round, size), variance, draws)
            if size == sizes[0]:
                start, start_variance, start_plan = pairs, variance, plan
            # What the lemma says from the smallest batch on.
            pairs["bound_overlap"] = [
                overlap.overlap_bound(
                    distance,
                    start_variance,
                    first_round.num_parameters,
                    growth=size / sizes[0],
                    noise_growth=plan.noise_multipliers[0] / start_plan.noise_multipliers[0],
                )
                for distance in start["distance"]
            ]
            fitted = [next(fit(updates, first_round)) for updates in draws]
            rows.append(
                {
                    "epsilon": epsilon,
                    "first_batch_size": size,
                    "noise_multiplier": plan.noise_multipliers[0],
                    **pairs.mean(),
                    "fitted_mss": np.mean([mixture.mss for _, mixture, _ in fitted]),
                    "exact": np.mean([match.exact for *_, match in fitted]),
                }
            )
    table = pd.DataFrame(rows)
    return table.assign(measured_over_lemma=table["measured_score"] / table["lemma_score"])


def _pairs(
    first_round: "FirstRound", centres: np.ndarray, variance: float, draws: list[np.ndarray]
) -> pd.DataFrame:
    """A row per pair of clusters: score and overlap, by the lemma and as measured."""
    clusters = np.array(first_round.store.true_clusters)
    rows = []
    for one, two in itertools.combinations(range(len(centres)), 2):
        distance = float(np.linalg.norm(centres[one] - centres[two]))
        axis = (centres[one] - centres[two]) / distance
        low, high = (
            np.concatenate([updates[clusters == cluster] @ axis for updates in draws])
            for cluster in (two, one)
        )
        middle = (centres[one] + centres[two]) @ axis / 2
        deviation = np.sqrt((low.var(ddof=1) + high.var(ddof=1)) / 2)
        component = (distance, variance, first_round.num_parameters)
        rows.append(
            {
                "distance": distance,
                "lemma_score": overlap.separation_score(*component),
                "measured_score": (high.mean() - low.mean()) / (2 * deviation),
                "lemma_overlap": overlap.overlap(*component),
                "measured_overlap": np.mean(low > middle) + np.mean(high < middle),
            }
        )
    return pd.DataFrame(rows)


def draw_overlap(table: pd.DataFrame) -> Figure:
    """The score and the overlap against b1, measured and by the lemma."""
    figure, (left, right) = style.panels(2, width=3.8)
    for index, (epsilon, rows) in enumerate(table.groupby("epsilon")):
        for axes, column in ((left, "score"), (right, "overlap")):
            for source, line in (("lemma", "-"), ("measured", "none")):
                axes.plot(
                    rows["first_batch_size"],
                    rows[f"{source}_{column}"],
                    linestyle=line,
                    marker=style.MARKERS[index] if source == "measured" else None,
                    color=style.COLOURS[index],
                    label=f"{source}, epsilon {epsilon:g}",
                )
            style.log_ticks(axes, "x", table["first_batch_size"])
            axes.set_xlabel("b1 (the last is the full batch)")
        left.plot(
            rows["first_batch_size"],
            rows["fitted_mss"],
            ":",
            color=style.COLOURS[index],
            label=f"MSS of a mixture, epsilon {epsilon:g}",
        )
    left.set_ylabel("separation score")
    style.log_numbers(left, "y")
    right.set(ylabel="overlap 2 Q(score)")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _first_batches(first_round: "FirstRound") -> list[int]:
    full = first_round.records
    return [size for size in FIRST_BATCHES if size < full] + [full]


def _local_round(
    first_round: "FirstRound", batch_size: int, plan: PrivacyPlan
) -> update_variance.LocalRound:
    return update_variance.LocalRound(
        records=first_round.records,
        batch_size=batch_size,
        local_epochs=first_round.config.local_epochs,
        learning_rate=first_round.config.learning_rate,
        num_parameters=first_round.num_parameters,
        clip_norm=first_round.config.clip_norm,
        noise_multiplier=plan.noise_multipliers[0],
    )


def _steps(first_round: "FirstRound", batch_size: int) -> int:
    return accounting.steps_per_round(
        first_round.records, batch_size, first_round.config.local_epochs
    )


def _centres(first_round: "FirstRound", first_batch_size: int) -> np.ndarray:
    """The mean of each true cluster's updates, trained with clipping and WITHOUT noise: [M, p]."""
    plan = first_round.plan(EPSILON, first_batch_size=first_batch_size)
    silent = dataclasses.replace(
        plan, noise_multipliers=(0.0,) * len(plan.schedules), first_round_noise_multipliers=()
    )
    updates = first_round.updates(silent, draw=0)
    clusters = np.array(first_round.store.true_clusters)
    return np.stack([updates[clusters == cluster].mean(axis=0) for cluster in np.unique(clusters)])


def _as_later_round(plan: PrivacyPlan) -> PrivacyPlan:
    """The same noise, with the batches of the rounds after the first."""
    schedules = tuple(
        dataclasses.replace(one, first_batch_size=one.batch_size) for one in plan.schedules
    )
    return dataclasses.replace(plan, schedules=schedules, first_round_noise_multipliers=())


def _measured_variance(first_round: "FirstRound", plan: PrivacyPlan) -> float:
    """The variance over draws, summed over coordinates, in the mean over clients.

    Two draws are enough: every coordinate of every client adds to the estimate.
    """
    one, two = (first_round.updates(plan, draw).astype(np.float64) for draw in range(2))
    return float(np.square(one - two).sum(axis=1).mean() / 2)
