"""The appendix' example in one dimension: why losses mislead early, and gradients late.

Four clients with quadratic losses, in two clusters. The paper's numbers; no data, nothing private.
The paper says that all four choose model 2 at first; by its own numbers, client 1 does not.
"""

import pandas as pd
from matplotlib.figure import Figure

from experiments.plots import style

# f_i(theta) = 4 (theta - optimum)^2.
CURVATURE = 4.0
OPTIMA = {1: -6.0, 2: -5.0, 3: 5.0, 4: 6.0}
CLUSTERS = {1: 1, 2: 1, 3: 2, 4: 2}
# The two cluster models before training, and after T rounds in the right clusters.
MODELS = {"initial": (-11.0, 0.0), "trained": (-4.5, 5.5)}
_CURVE = [step / 4 for step in range(-52, 53)]


def losses_table() -> pd.DataFrame:
    """Each client's loss and gradient along theta, and at the models that the example looks at."""
    rows = []
    for client, optimum in OPTIMA.items():
        points = [("curve", 0, theta) for theta in _CURVE] + [
            (time, model, theta)
            for time, models in MODELS.items()
            for model, theta in enumerate(models, start=1)
        ]
        rows += [
            {
                "time": time,
                "model": model,
                "client": client,
                "cluster": CLUSTERS[client],
                "theta": theta,
                "loss": CURVATURE * (theta - optimum) ** 2,
                "gradient": 2 * CURVATURE * (theta - optimum),
            }
            for time, model, theta in points
        ]
    return pd.DataFrame(rows)


def draw_losses(table: pd.DataFrame) -> Figure:
    """Left: the losses, and where the models are. Right: the gradients of the trained models."""
    figure, (left, right) = style.panels(2, width=4.6)
    curves = table[table["time"] == "curve"]
    for client, curve in curves.groupby("client"):
        left.plot(
            curve["theta"],
            curve["loss"],
            color=style.COLOURS[CLUSTERS[client] - 1],
            linestyle="-" if client in (1, 4) else "--",
            label=f"client {client} (cluster {CLUSTERS[client]})",
        )
    for time, marker, label in (
        ("initial", "v", "models 1 and 2, initial"),
        ("trained", "*", "models 1 and 2, trained"),
    ):
        thetas = MODELS[time]
        left.vlines(thetas, 0, 700, color="grey", linewidth=0.6, zorder=0)
        left.plot(thetas, (0, 0), marker, color="black", markersize=8, clip_on=False, label=label)
    left.set(xlabel="theta", ylabel="loss", ylim=(0, 700), xlim=(-13, 13))
    left.set_title(
        "early, losses mislead: of the initial models,\nmodel 2 suits client 2 better than model 1"
    )
    left.legend(loc="upper left", bbox_to_anchor=(1, 1))

    trained = table[(table["time"] == "trained") & (table["model"] == table["cluster"])]
    for row in trained.itertuples():
        index = row.cluster - 1
        right.plot(
            row.gradient,
            row.client,
            style.MARKERS[index],
            color=style.COLOURS[index],
            markersize=8,
        )
        right.annotate(
            f"{row.gradient:g}",
            (row.gradient, row.client),
            textcoords="offset points",
            xytext=(8, 4),
        )
    right.set(xlabel="gradient at the own cluster's trained model", xlim=(-7, 15))
    right.set_yticks(list(OPTIMA), [f"client {client}" for client in OPTIMA])
    right.set_ylim(0.5, 4.8)
    right.set_title("late, gradients mislead: client 2's is\nnearer to 3's and 4's than to 1's")
    return figure
