"""The picture of a plan: how many records it takes to find the clusters, and where the budget goes.

Drawn from public numbers only, before any training.
"""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from experiments.plots import style
from rdpcfl_tff.outlook import LIKELY
from rdpcfl_tff.training.pictures import COLOURS, MARKERS


def draw(curves: pd.DataFrame, shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """The forecast against N at several budgets; each plan's shares of the RDP."""
    with style.look():
        figure, (forecast, budget) = style.panels(columns=2)
        groups = curves.groupby("epsilon")
        for (epsilon, curve), colour, marker in zip(
            groups, style.ordered_colours(len(groups)), MARKERS, strict=False
        ):
            forecast.plot(
                curve["records"], curve["exact"], marker + "-", color=colour, label=f"{epsilon:g}"
            )
        forecast.axhline(LIKELY, color="grey", linewidth=0.8, linestyle=":")
        style.log_ticks(forecast, "x", curves["records"])
        forecast.set(xlabel="N, train records of a client", ylabel="exact partition, forecast")
        forecast.set_ylim(-0.05, 1.05)
        forecast.legend(title="epsilon")

        stages = pd.DataFrame(shares)
        bottom = pd.Series(0.0, index=stages.columns)
        for (stage, row), fill in zip(stages.iterrows(), COLOURS, strict=False):
            budget.bar(stages.columns, row, bottom=bottom, color=fill, width=0.5, label=stage)
            bottom = bottom + row
        budget.set(ylabel="share of the RDP", xlim=(-0.6, len(stages.columns) - 0.4))
        budget.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=3)
    return figure
