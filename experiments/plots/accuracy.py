"""Figures from a sweep: accuracy and found clusters against epsilon, and accuracy over the rounds.

The paper's main results, with the spread over seeds. Exact accuracies and true clusters are shown,
so all of these are for simulations only.
"""

import pathlib
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments import sweep_results
from experiments.plots import style

_PANEL = ["dataset", "shift"]


def accuracy_table(sweep: pathlib.Path) -> pd.DataFrame:
    """Mean and deviation over seeds of the clients' test accuracy, and exact partitions."""
    return _over_seeds(sweep, "test_accuracy_mean", "exact")


def minority_table(sweep: pathlib.Path) -> pd.DataFrame:
    """The same for the clients of the smallest true cluster, and how often it was found."""
    return _over_seeds(sweep, "test_accuracy_minority", "minority_found")


def _over_seeds(sweep: pathlib.Path, accuracy: str, found: str) -> pd.DataFrame:
    runs = sweep_results.load(sweep).groupby([*_PANEL, "algorithm", "epsilon"])
    return runs.agg(
        runs=("seed", "count"),
        accuracy=(accuracy, "mean"),
        deviation=(accuracy, "std"),
        lowest=(accuracy, "min"),
        highest=(accuracy, "max"),
        found=(found, "sum"),
    ).reset_index()


def draw_accuracy(table: pd.DataFrame) -> Figure:
    """A column per data set and shift. Top: accuracy. Bottom: runs that found all clusters."""
    return _draw(table, "runs that found\nthe true clusters")


def draw_minority(table: pd.DataFrame) -> Figure:
    """The same with the minority's accuracy, and runs that found the minority cluster."""
    return _draw(table, "runs that found\nthe minority cluster")


def _draw(table: pd.DataFrame, found: str) -> Figure:
    settings = list(table.groupby(_PANEL))
    figure, panels = style.panels(len(settings), 2, width=max(3.2, 6.4 / len(settings)), height=2.5)
    positions = {epsilon: place for place, epsilon in enumerate(sorted(table["epsilon"].unique()))}
    for column, ((dataset, shift), rows) in enumerate(settings):
        top, bottom = panels[column], panels[len(settings) + column]
        _draw_lines(top, rows, positions)
        _draw_counts(bottom, rows, positions)
        top.set_title(f"{dataset}, {shift}")
        for axes in (top, bottom):
            axes.set_xticks(list(positions.values()), [f"{epsilon:g}" for epsilon in positions])
            axes.set_xlim(-0.5, len(positions) - 0.5)
        bottom.set_xlabel("epsilon")
    panels[0].set_ylabel("test accuracy")
    panels[len(settings)].set_ylabel(found)
    handles, labels = _all_handles(panels[: len(settings)])
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_lines(axes: Axes, rows: pd.DataFrame, positions: dict[float, int]) -> None:
    present = [name for name in style.ALGORITHMS if name in set(rows["algorithm"])]
    for index, algorithm in enumerate(present):
        label, colour, marker, line = style.ALGORITHMS[algorithm]
        mine = rows[rows["algorithm"] == algorithm].sort_values("epsilon")
        # A little apart, or the bars would hide each other.
        places = mine["epsilon"].map(positions) + 0.05 * (index - (len(present) - 1) / 2)
        axes.errorbar(
            places,
            mine["accuracy"],
            yerr=mine["deviation"].fillna(0),
            label=label,
            color=colour,
            marker=marker,
            linestyle=line,
            capsize=2,
            elinewidth=0.9,
        )


def _draw_counts(axes: Axes, rows: pd.DataFrame, positions: dict[float, int]) -> None:
    width = 0.35
    for index, algorithm in enumerate(sweep_results.CLUSTERING):
        label, colour, _, _ = style.ALGORITHMS[algorithm]
        mine = rows[rows["algorithm"] == algorithm]
        bars = axes.bar(
            mine["epsilon"].map(positions) + width * (index - 0.5),
            mine["found"],
            width,
            color=colour,
            label=label,
        )
        axes.bar_label(
            bars,
            [f"{found}/{runs}" for found, runs in zip(mine["found"], mine["runs"], strict=True)],
            fontsize=7,
        )
    axes.set_ylim(0, rows["runs"].max() * 1.2)
    axes.yaxis.get_major_locator().set_params(integer=True)


def rounds_table(sweep: pathlib.Path) -> pd.DataFrame:
    """The validation accuracy after each round that was looked at, and the round's stage."""
    runs = sweep_results.load(sweep)
    parts = []
    for run in runs.itertuples():
        folder = sweep / run.run_folder
        accuracy = pd.read_csv(folder / "simulation_metrics.csv")
        stages = pd.read_csv(folder / "metrics.csv")[["round", "stage"]]
        # Every round has a stage, but not every one was looked at.
        part = stages.merge(accuracy, on="round", how="left")
        setting = {name: getattr(run, name) for name in (*_PANEL, "algorithm", "epsilon", "seed")}
        parts.append(part.assign(**setting))
    return pd.concat(parts, ignore_index=True)


def draw_rounds(table: pd.DataFrame) -> Figure:
    """Rows are data sets and shifts, columns epsilons; stages are those of R-DPCFL's first seed."""
    settings = list(table.groupby(_PANEL))
    epsilons = sorted(table["epsilon"].unique())
    figure, panels = style.panels(
        len(epsilons), len(settings), width=max(2.8, 5.6 / len(epsilons)), height=2.6
    )
    for index, axes in enumerate(panels):
        (dataset, shift), rows = settings[index // len(epsilons)]
        epsilon = epsilons[index % len(epsilons)]
        rows = rows[rows["epsilon"] == epsilon]
        _mark_stages(axes, rows[rows["algorithm"] == "rdpcfl"])
        for algorithm, (label, colour, _, line) in style.ALGORITHMS.items():
            mine = rows[rows["algorithm"] == algorithm].dropna(subset="mean")
            if len(mine):
                mean = mine.groupby("round")["mean"].mean()
                axes.plot(mean, color=colour, linestyle=line, label=label)
        axes.set_title(f"{dataset}, {shift}, epsilon {epsilon:g}", pad=20)
        axes.set(xlabel="round", ylabel="validation accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = _all_handles(panels)
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _mark_stages(axes: Axes, rows: pd.DataFrame) -> None:
    if rows.empty:
        return
    first = rows[rows["seed"] == rows["seed"].min()]
    for index, (stage, start) in enumerate(
        first.groupby("stage", sort=False)["round"].min().items()
    ):
        axes.axvline(start, color="grey", linewidth=0.7, linestyle=":")
        axes.annotate(
            stage,
            (start, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(1, 1 + 7 * (index % 2)),
            textcoords="offset points",
            fontsize=6,
            color="dimgrey",
        )


def _all_handles(panels: list[Axes]) -> tuple[list, list[str]]:
    """Every label once, whichever panel it is in."""
    known: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    return list(known.values()), list(known)
