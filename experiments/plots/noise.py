"""Figures that follow from the accountant alone: the noise that batch sizes and budgets ask for.

The paper's figures on the update variance and on the noise scale z, and ours on joint accounting.
Nothing private comes in: all of it can be computed before any data is there.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import optimize

from experiments.plots import style
from rdpcfl_tff.privacy import accounting, update_variance

# The paper's setting of the two figures on b1 and b>1: CIFAR-10 with ResNet-18.
RECORDS, ROUNDS, EPSILON, DELTA = 6600, 200, 5.0, 1e-4
CLIP_NORM, LEARNING_RATE, PARAMETERS = 3.0, 5e-4, 11_181_642
FIRST_BATCHES = (32, 128, 512, 2048, RECORDS)
LATER_BATCHES = (16, 32, 64, 128, 256)

# Of its figure on the ratio; its delta of 1e-4 is above 1/N there, and no privacy at all.
MANY_RECORDS, SMALL_DELTA = 50_000, 1e-5
RATIO_BATCHES = (16, 32, 64, 128, 256, 512, 1024)

# Its MNIST runs, with the selections that every run pays for.
MNIST_RECORDS, MNIST_BATCH, SELECTIONS, SELECT_RATIO = 8000, 32, 20, 0.03

EPSILONS = (3.0, 4.0, 5.0, 10.0, 15.0)


def noise_scale_table() -> pd.DataFrame:
    """z for every b1 and b>1."""
    return pd.DataFrame(
        {
            "first_batch_size": first,
            "batch_size": later,
            "noise_multiplier": accounting.noise_multiplier(
                accounting.Schedule(RECORDS, ROUNDS, later, first), EPSILON, DELTA
            ),
        }
        for first in FIRST_BATCHES
        for later in LATER_BATCHES
    )


def draw_noise_scale(table: pd.DataFrame) -> Figure:
    """z against b1, a line per b>1, and the other way round."""
    figure, (left, right) = style.panels(2, sharey=True)
    _lines(left, table, "first_batch_size", "batch_size", "noise_multiplier")
    _lines(right, table, "batch_size", "first_batch_size", "noise_multiplier")
    left.set_ylabel("noise multiplier z")
    figure.suptitle(f"N = {RECORDS}, epsilon = {EPSILON:g}, E = {ROUNDS}")
    return figure


def update_variance_table() -> pd.DataFrame:
    """The lemma's variance of an update in round 1 and later, for every b1 and b>1."""
    table = noise_scale_table()
    return pd.concat(
        table.assign(
            round=name,
            variance=[
                update_variance.noise_variance(
                    update_variance.LocalRound(
                        records=RECORDS,
                        batch_size=size,
                        local_epochs=1,
                        learning_rate=LEARNING_RATE,
                        num_parameters=PARAMETERS,
                        clip_norm=CLIP_NORM,
                        noise_multiplier=z,
                    )
                )
                for size, z in zip(table[column], table["noise_multiplier"], strict=True)
            ],
        )
        for name, column in (("1", "first_batch_size"), (">1", "batch_size"))
    )


def draw_update_variance(table: pd.DataFrame) -> Figure:
    """Two panels: round 1, which b1 rules, and the rounds after it, which b>1 rules."""
    figure, (left, right) = style.panels(2)
    _lines(left, table[table["round"] == "1"], "first_batch_size", "batch_size", "variance")
    _lines(right, table[table["round"] == ">1"], "batch_size", "first_batch_size", "variance")
    left.set(yscale="log", ylabel="variance of an update", title="round 1")
    right.set(yscale="log", title="rounds after it")
    return figure


def noise_ratio_table() -> pd.DataFrame:
    """What a full first batch costs: z with it, over z with b1 = b>1, for every epsilon and b>1."""
    rows = []
    for epsilon in EPSILONS:
        for size in RATIO_BATCHES:
            full, small = (
                accounting.noise_multiplier(
                    accounting.Schedule(MANY_RECORDS, ROUNDS, size, first), epsilon, SMALL_DELTA
                )
                for first in (MANY_RECORDS, size)
            )
            rows.append(
                {
                    "epsilon": epsilon,
                    "batch_size": size,
                    "full_batch_noise_multiplier": full,
                    "small_batch_noise_multiplier": small,
                    "ratio": full / small,
                }
            )
    return pd.DataFrame(rows)


def draw_noise_ratio(table: pd.DataFrame) -> Figure:
    """The ratio against epsilon, a line per b>1."""
    figure, (axes,) = style.panels(1, width=4.5)
    _lines(axes, table, "epsilon", "batch_size", "ratio")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("z with b1 = N / z with b1 = b>1")
    axes.set_title(f"N = {MANY_RECORDS}, delta = {SMALL_DELTA:g}, E = {ROUNDS}")
    return figure


def joint_accounting_table() -> pd.DataFrame:
    """z of R-DPCFL on MNIST by one composition, and by a split of epsilon in two parts."""
    rows = []
    for epsilon in EPSILONS:
        schedule = accounting.Schedule(
            records=MNIST_RECORDS,
            rounds=ROUNDS,
            batch_size=MNIST_BATCH,
            first_batch_size=MNIST_RECORDS,
            selections=SELECTIONS,
            epsilon_select=SELECT_RATIO * epsilon,
        )
        row = {
            "epsilon": epsilon,
            "joint": accounting.noise_multiplier(schedule, epsilon, DELTA),
            "split": split_noise_multiplier(schedule, epsilon, DELTA, older=False),
            "authors": split_noise_multiplier(schedule, epsilon, DELTA, older=True),
        }
        more = {f"{name}_over_joint": row[name] / row["joint"] for name in ("split", "authors")}
        rows.append(row | more)
    return pd.DataFrame(rows)


def split_noise_multiplier(
    schedule: accounting.Schedule, epsilon: float, delta: float, older: bool
) -> float:
    """z if the selections' own epsilon is subtracted first, and the rest is for the training.

    Each of the two parts is converted at delta, so that both together spend 2 delta. `older`
    converts RDP to epsilon as Mironov (2017) does, and so the authors' code, not as today.
    """

    def spent(done: accounting.Done, z: float) -> float:
        if not older:
            return accounting.epsilon_spent(schedule, z, delta, done=done)
        rdp = accounting.composed_rdp(schedule, z, done=done)
        return float(np.min(rdp + math.log(1 / delta) / (accounting.ORDERS - 1)))

    rest = epsilon - spent(accounting.Done(selections=schedule.selections), z=math.inf)
    training = accounting.Done(first_round=True, later_rounds=schedule.rounds - 1)
    return optimize.brentq(lambda z: spent(training, z) - rest, 0.3, 30.0, xtol=1e-4)


def draw_joint_accounting(table: pd.DataFrame) -> Figure:
    """z against epsilon, with what the authors' way wastes."""
    figure, (axes,) = style.panels(1, width=4.8)
    for column, label, index in (
        ("authors", "the authors' code: a split, older conversion", 1),
        ("split", "a split, today's conversion", 4),
        ("joint", "one composition (ours)", 0),
    ):
        axes.plot(
            table["epsilon"],
            table[column],
            color=style.COLOURS[index],
            marker=style.MARKERS[index],
            label=label,
        )
    for row in table.itertuples():
        axes.annotate(
            f"+{row.authors_over_joint - 1:.0%}",
            (row.epsilon, row.authors),
            textcoords="offset points",
            xytext=(4, 4),
            fontsize=8,
        )
    style.log_ticks(axes, "x", table["epsilon"])
    axes.set(xlabel="epsilon", ylabel="noise multiplier z", ylim=(0, 1.25 * table["authors"].max()))
    axes.set_title(f"R-DPCFL, N = {MNIST_RECORDS}, b = {MNIST_BATCH}, {SELECTIONS} selections")
    axes.legend()
    return figure


_NAMES = {"first_batch_size": "b1", "batch_size": "b>1", "epsilon": "epsilon"}


def _lines(axes: Axes, table: pd.DataFrame, x: str, lines: str, y: str) -> None:
    groups = list(table.groupby(lines))
    for index, (colour, (value, group)) in enumerate(
        zip(style.ordered_colours(len(groups)), groups, strict=True)
    ):
        axes.plot(
            group[x],
            group[y],
            color=colour,
            marker=style.MARKERS[index % len(style.MARKERS)],
            label=f"{_NAMES[lines]} = {value:g}",
        )
    style.log_ticks(axes, "x", table[x])
    axes.set_xlabel(_NAMES[x])
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
