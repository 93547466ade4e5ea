"""Figures of the confidence in round 1: MSS against epsilon, the number of clusters, and the truth.

The paper's figures on MSS, and ours: what MSS is worth where there are no clusters. True clusters
are looked at, so all of these are for simulations only.
"""

import functools
import itertools

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.plots import style
from experiments.plots.study import MIXTURES, Study, fit, fit_one
from rdpcfl_tff.clustering import count
from rdpcfl_tff.clustering.mixture import principal_components

CANDIDATES = tuple(range(2, 9))
# A small silo is helped by smaller batches after round 1.
SMALL_LATER_BATCH = 8
# "An MSS above 2 almost always yields to correct detection."
TRUSTED_MSS = 2.0
# Below it nobody would trust a mixture; such points are drawn at the edge.
SMALLEST_MSS = 0.5


@functools.cache  # two figures show it
def mss_table(study: Study) -> pd.DataFrame:
    """MSS with M given, and whether the clusters were found, in large and in small silos."""
    rows = []
    for seed, small in itertools.product(range(study.seeds), (False, True)):
        first_round = study.first_round(seed, small)
        sizes = [study.config.batch_size] + [SMALL_LATER_BATCH] * small
        for epsilon, size in itertools.product(study.epsilons, sizes):
            plan = first_round.plan(epsilon, batch_size=size)
            for draw in range(study.draws):
                rows += [
                    {
                        "records": first_round.records,
                        "batch_size": size,
                        "epsilon": epsilon,
                        "seed": seed,
                        "draw": draw,
                        "mixture": name,
                        "mss": mixture.mss,
                        "exact": match.exact,
                    }
                    for name, mixture, match in fit(first_round.updates(plan, draw), first_round)
                ]
    return pd.DataFrame(rows)


def draw_mss_epsilon(table: pd.DataFrame) -> Figure:
    """A panel per mixture, a line per size: the median over seeds and draws, and their range."""
    figure, panels = style.panels(len(MIXTURES), width=3.8)
    for axes, name in zip(panels, MIXTURES, strict=True):
        mine = table[table["mixture"] == name]
        lines = mine.groupby(["records", "batch_size"])["mss"]
        for index, ((size, batch), _) in enumerate(lines):
            group = mine[(mine["records"] == size) & (mine["batch_size"] == batch)]
            mss = group.groupby("epsilon")["mss"]
            axes.plot(
                mss.median(),
                color=style.COLOURS[index],
                marker=style.MARKERS[index],
                label=f"N = {size}, b>1 = {batch}",
            )
            axes.fill_between(
                mss.min().index, mss.min(), mss.max(), color=style.COLOURS[index], alpha=0.15
            )
        axes.axhline(TRUSTED_MSS, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xlabel="epsilon", ylabel="MSS", title=f"{name} mixture")
        style.log_numbers(axes, "y")
        axes.set_ylim(bottom=SMALLEST_MSS)
        style.log_ticks(axes, "x", table["epsilon"])
    panels[-1].legend()
    return figure


def draw_mss_detection(table: pd.DataFrame) -> Figure:
    """A panel per mixture, a point per experiment: its MSS, and whether all clusters were found."""
    figure, panels = style.panels(len(MIXTURES), width=3.8, height=2.4)
    generator = np.random.default_rng(0)
    for axes, name in zip(panels, MIXTURES, strict=True):
        mine = table[table["mixture"] == name]
        for found, index in ((True, 0), (False, 1)):
            points = mine[mine["exact"] == found]["mss"]
            # Points with the same outcome are spread over a band, or they would hide each other.
            heights = found + generator.uniform(-0.25, 0.25, len(points))
            axes.plot(
                points.clip(lower=SMALLEST_MSS),
                heights,
                style.MARKERS[index],
                color=style.COLOURS[index],
                alpha=0.5,
                markersize=4,
            )
        above = mine[mine["mss"] > TRUSTED_MSS]["exact"]
        share = f"{above.sum()} of {len(above)} right" if len(above) else "none"
        axes.axvline(TRUSTED_MSS, color="grey", linewidth=0.8, linestyle=":")
        axes.set_yticks([0, 1], ["clusters\nmissed", "clusters\nfound"])
        axes.set(xlabel="MSS", ylim=(-0.5, 1.5))
        style.log_numbers(axes, "x")
        axes.set_title(f"{name} mixture; above {TRUSTED_MSS:g}: {share}")
    return figure


def mss_candidates_table(study: Study) -> pd.DataFrame:
    """MSS for every candidate M', epsilon and seed: one draw of the noise each."""
    rows = []
    for seed in range(study.seeds):
        first_round = study.first_round(seed, small=True)
        for epsilon in study.epsilons:
            updates = first_round.updates(first_round.plan(epsilon), draw=0)
            components = principal_components(updates)
            rows += [
                {
                    "epsilon": epsilon,
                    "seed": seed,
                    "mixture": name,
                    "candidate": candidate,
                    "mss": fit_one(name, components, candidate, seed).mss,
                }
                for name in MIXTURES
                for candidate in CANDIDATES
            ]
    return pd.DataFrame(rows)


def draw_mss_candidates(table: pd.DataFrame) -> Figure:
    """Rows are mixtures, columns epsilons, a line per seed with its peak marked."""
    epsilons = sorted(table["epsilon"].unique())
    figure, panels = style.panels(len(epsilons), len(MIXTURES), width=2.6, height=2.3, sharey="row")
    cells = itertools.product(MIXTURES, epsilons)
    for axes, (name, epsilon) in zip(panels, cells, strict=True):
        panel = table[(table["mixture"] == name) & (table["epsilon"] == epsilon)]
        for seed, line in panel.groupby("seed"):
            colour = style.COLOURS[seed % len(style.COLOURS)]
            peak = line.loc[line["mss"].idxmax()]
            axes.plot(line["candidate"], line["mss"], color=colour, label=f"seed {seed}")
            axes.plot(peak["candidate"], peak["mss"], "*", color=colour, markersize=9)
        axes.set(xlabel="M'", title=f"{name} mixture, epsilon {epsilon:g}")
        axes.set_xticks(CANDIDATES)
    for axes in panels[:: len(epsilons)]:
        axes.set_ylabel("MSS")
        axes.set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def null_table(study: Study) -> pd.DataFrame:
    """The largest ratio of MSS to the null's, without clusters and of the study's own clients."""
    first_round = study.first_round(small=True)
    clients = first_round.store.num_clients
    null = count.null_mss(clients, CANDIDATES, first_round.config.seed)
    unusual = np.quantile(null, 1 - count.SIGNIFICANCE, axis=0)
    rows: list[dict[str, object]] = [
        {"kind": "no clusters", "epsilon": None, "draw": index, "ratio": ratio, "p_value": None}
        for index, ratio in enumerate((null / unusual).max(axis=1))
    ]
    for epsilon, draw in itertools.product(study.epsilons, range(study.draws)):
        components = principal_components(first_round.updates(first_round.plan(epsilon), draw))
        counted = count.count_clusters(components, CANDIDATES, first_round.config.seed)
        rows.append(
            {
                "kind": "four clusters",
                "epsilon": epsilon,
                "draw": draw,
                "ratio": max(candidate.ratio for candidate in counted.candidates),
                "p_value": counted.p_value,
            }
        )
    return pd.DataFrame(rows)


def draw_null(table: pd.DataFrame) -> Figure:
    """The null as a histogram; each draw of the study as a mark, a height per epsilon."""
    figure, (axes,) = style.panels(1, width=6.4, height=3.2)
    null = table[table["kind"] == "no clusters"]["ratio"]
    observed = table[table["kind"] == "four clusters"]
    axes.hist(null, bins=30, color="lightgrey", label=f"{len(null)} federations without clusters")
    axes.axvline(
        null.quantile(1 - count.SIGNIFICANCE),
        color="black",
        linewidth=0.9,
        linestyle="--",
        label=f"their {1 - count.SIGNIFICANCE:.0%} point",
    )
    top = axes.get_ylim()[1]
    groups = list(observed.groupby("epsilon"))
    for index, (epsilon, group) in enumerate(groups):
        height = top * (0.35 + 0.6 * index / max(1, len(groups) - 1))
        axes.plot(
            group["ratio"],
            [height] * len(group),
            style.MARKERS[index % len(style.MARKERS)],
            color=style.COLOURS[index % len(style.COLOURS)],
            label=f"epsilon {epsilon:g}",
        )
    axes.set(
        xlabel="MSS over its 95 % point without clusters, largest over M'",
        ylabel="federations",
    )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
