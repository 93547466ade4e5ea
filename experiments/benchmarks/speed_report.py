"""The tables and the plot of the speed benchmark, from its measurements."""

import os
import pathlib
import re

import pandas as pd
from matplotlib.figure import Figure

OURS, SGD = "ours", "SGD without privacy, Keras"
_COLOURS = {OURS: "#0072B2", SGD: "#999999"}
_OTHER_COLOUR = "#E69F00"


def machine() -> str:
    """What the times were measured on, and how busy it was."""
    cores = len(os.sched_getaffinity(0))
    model = re.search("model name\\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{cores} cores, {model[1] if model else 'unknown CPU'}, load {os.getloadavg()[0]:.1f}"


def summary(measured: pd.DataFrame, labels: list[str], notes: dict[str, str]) -> pd.DataFrame:
    """One row per contender: medians, the middle half, and two ratios of elapsed times.

    A ratio is the median of the ratios within each repetition, which a machine that is busy for a
    while disturbs less than a ratio of medians.
    """
    pivoted = measured.pivot(index="repetition", columns="contender")
    times = pivoted["ms_per_step"].reindex(columns=labels)
    return pd.DataFrame(
        {
            "ms_per_step": times.median(),
            "lower_quartile": times.quantile(0.25),
            "upper_quartile": times.quantile(0.75),
            "times_sgd": times.div(times[SGD], axis=0).median(),
            "times_ours": times.div(times[OURS], axis=0).median(),
            "cpu_ms_per_step": pivoted["cpu_ms_per_step"].median().reindex(labels),
            "note": pd.Series(notes, dtype=str).reindex(labels).fillna(""),
        }
    ).reset_index(names="contender")


def markdown(table: pd.DataFrame) -> str:
    """The table, ready for a Markdown page."""
    lines = [
        "| contender | ms/step | middle half | x SGD | x ours | CPU ms/step | note |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in table.itertuples():
        numbers = ["-"] * 5
        if pd.notna(row.ms_per_step):
            numbers = [
                f"{row.ms_per_step:.1f}",
                f"{row.lower_quartile:.1f}-{row.upper_quartile:.1f}",
                f"{row.times_sgd:.2f}",
                f"{row.times_ours:.2f}",
                f"{row.cpu_ms_per_step:.1f}",
            ]
        lines.append("| " + " | ".join([row.contender, *numbers, row.note]) + " |")
    return "\n".join(lines)


def draw(tables: pd.DataFrame, path: pathlib.Path) -> None:
    """One panel of bars for each model and threading; the time axis is logarithmic."""
    panels = list(tables.dropna(subset="ms_per_step").groupby(["model", "threading"], sort=False))
    figure = Figure(figsize=(7 * len(panels), 5), layout="constrained")
    for axes, ((model, threading), table) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        table = table.iloc[::-1]  # the first row is drawn at the top
        errors = [
            table.ms_per_step - table.lower_quartile,
            table.upper_quartile - table.ms_per_step,
        ]
        colours = [_COLOURS.get(label, _OTHER_COLOUR) for label in table.contender]
        bars = axes.barh(table.contender, table.ms_per_step, xerr=errors, color=colours)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize="small")
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.set_xlabel("ms per step (median, middle half)")
        axes.set_title(f"{model}, b={table.batch_size.iloc[0]}\n{threading}")
    figure.savefig(path, dpi=120)
