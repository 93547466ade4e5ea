"""Figures of the updates themselves: two principal components, and the mixture that was fitted.

The paper's pictures of round 1 for small and full first batches, and for growing batches after it.
They show true clusters, so they are for simulations only.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from experiments.plots import style
from experiments.plots.study import Study, fit
from rdpcfl_tff.privacy.plan import PrivacyPlan

if TYPE_CHECKING:
    from experiments.first_updates import FirstRound

# The paper's, in both figures.
EPSILON = 10.0
SMALL_FIRST_BATCH = 32
LATER_BATCHES = (8, 16, 32, 64, 128, 256)


def first_batches_table(study: Study) -> pd.DataFrame:
    """Round 1 with b1 = 32, and with the full batch."""
    first_round = study.first_round()
    return _table(
        first_round,
        (
            first_round.plan(EPSILON, first_batch_size=size)
            for size in (SMALL_FIRST_BATCH, first_round.records)
        ),
    )


def later_batches_table(study: Study) -> pd.DataFrame:
    """Round 1 with the full batch, in small silos, for growing b>1."""
    first_round = study.first_round(small=True)
    return _table(
        first_round,
        (
            first_round.plan(EPSILON, batch_size=size)
            for size in LATER_BATCHES
            if size <= first_round.records
        ),
    )


def _table(first_round: "FirstRound", plans: Iterable[PrivacyPlan]) -> pd.DataFrame:
    """A row per client and per centre, in the space of the paper's mixture."""
    rows: list[dict[str, object]] = []
    for plan in plans:
        (_, mixture, match), _ = fit(first_round.updates(plan, draw=0), first_round)
        setting = {
            "first_batch_size": plan.schedules[0].first_batch_size,
            "batch_size": plan.schedules[0].batch_size,
            "noise_multiplier": plan.noise_multipliers[0],
            "mss": mixture.mss,
            "misplaced_clients": match.misplaced,
        }
        clients = zip(first_round.store.true_clusters, mixture.coordinates, strict=True)
        rows += [
            setting | {"kind": "client", "cluster": cluster, "x": x, "y": y}
            for cluster, (x, y) in clients
        ]
        rows += [
            setting | {"kind": "centre", "cluster": component, "x": x, "y": y}
            for component, (x, y) in enumerate(mixture.means)
        ]
    return pd.DataFrame(rows)


def draw_components(table: pd.DataFrame) -> Figure:
    """A panel per setting: colour and marker are the true cluster, crosses are fitted centres."""
    settings = list(table.groupby(["first_batch_size", "batch_size"]))
    columns = min(len(settings), 3)
    rows = -(-len(settings) // columns)
    figure, panels = style.panels(columns, rows, height=3.1)
    for axes, ((first, later), panel) in zip(panels, settings, strict=False):
        clients = panel[panel["kind"] == "client"]
        for cluster, members in clients.groupby("cluster"):
            axes.scatter(
                members["x"],
                members["y"],
                color=style.COLOURS[cluster % len(style.COLOURS)],
                marker=style.MARKERS[cluster % len(style.MARKERS)],
                alpha=0.8,
                label=f"true cluster {cluster}",
            )
        centres = panel[panel["kind"] == "centre"]
        axes.scatter(
            centres["x"], centres["y"], color="black", marker="x", s=45, label="fitted centres"
        )
        some = panel.iloc[0]
        axes.set_title(
            f"b1 = {first}, b>1 = {later}\n"
            f"MSS = {some['mss']:.1f}, {some['misplaced_clients']} clients misplaced"
        )
        axes.set(xlabel="first component", ylabel="second component")
    for axes in panels[len(settings) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
