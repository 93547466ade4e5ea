"""The picture of a finished run: what round 1 showed, and how the accuracy grew.

Drawn from the run's records alone. It shows true clusters and exact accuracies, so it is for
simulations only, and its file is named so.
"""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")  # files only: no screen is needed

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

# Okabe and Ito's colours, which colour-blind readers can tell apart, and markers to print in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKERS = "os^DvP*X"


def draw_run(directory: pathlib.Path) -> pathlib.Path:
    """Draws `simulation_run.png` from the records in the results folder."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    clients = pd.read_csv(directory / "simulation_clients.csv")
    if (directory / "mixture.json").exists():
        _draw_components(axes[0], json.loads((directory / "mixture.json").read_text()), clients)
    else:
        axes[0].set_axis_off()
    _draw_accuracy(axes[1], directory)
    path = directory / "simulation_run.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _draw_components(axes: plt.Axes, content: dict, clients: pd.DataFrame) -> None:
    points = np.array(content["principal_components"])
    found = np.array(content["responsibilities"]).argmax(axis=1)
    known = "true_cluster" in clients
    true_clusters = clients["true_cluster"] if known else pd.Series(0, clients.index)
    for cluster, members in true_clusters.groupby(true_clusters).groups.items():
        axes.scatter(
            points[members, 0],
            points[members, 1],
            c=[COLOURS[found[client] % len(COLOURS)] for client in members],
            marker=MARKERS[cluster % len(MARKERS)],
            s=60,
            alpha=0.8,
            label=f"true cluster {cluster}" if known else "client",
        )
    axes.set_xlabel("first principal component")
    axes.set_ylabel("second principal component")
    axes.set_title("Updates of round 1 (colour: cluster found)")
    legend = axes.legend(fontsize="small")
    for handle in legend.legend_handles:
        handle.set_facecolor("grey")


def _draw_accuracy(axes: plt.Axes, directory: pathlib.Path) -> None:
    accuracy = pd.read_csv(directory / "simulation_metrics.csv")
    for column, colour, style in (("mean", 0, "-"), ("minority", 1, "--"), ("worst", 2, ":")):
        if column in accuracy:
            axes.plot(
                accuracy["round"], accuracy[column], style, color=COLOURS[colour], label=column
            )
    rounds = pd.read_csv(directory / "metrics.csv")
    starts = rounds.groupby("stage", sort=False)["round"].min()
    for index, (stage, start) in enumerate(starts.items()):
        axes.axvline(start, color="grey", linewidth=0.8)
        # Two heights in turn, because short stages would write over each other.
        axes.text(
            start,
            1.01 + 0.05 * (index % 2),
            f" {stage}",
            fontsize="small",
            va="bottom",
            color="grey",
        )
    axes.set_ylim(0, 1)
    axes.set_xlabel("round")
    axes.set_ylabel("validation accuracy")
    axes.legend(loc="lower right", fontsize="small")
