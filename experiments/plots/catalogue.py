"""Every figure: its name, what it shows, which figure of the paper it stands for, how it is made.

A figure is a table and a way to draw it; the table is kept beside the picture. Figures that look at
true clusters or exact accuracies are for simulations only, and their files are named so.
"""

import dataclasses
import enum
import pathlib
from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from experiments.plots import accuracy, components, lemmas, noise, one_dimension, separation, style
from experiments.plots.study import Study


class Source(enum.Enum):
    """Where a figure's table comes from."""

    FORMULAS = "computed, no data"
    FIRST_ROUND = "round 1 of --dataset"
    SWEEP = "the runs of --sweep"


@dataclasses.dataclass(frozen=True)
class NamedFigure:
    """One figure.

    Attributes:
        name: As `--figure` takes it.
        paper: The paper's figure, or "ours".
        source: Where the table comes from.
        shows: What it shows, in one line.
        table: Makes the table, from the study or from the sweep's folder if there is such a source.
        draw: Draws the table.
    """

    name: str
    paper: str
    source: Source
    shows: str
    table: Callable[..., pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]

    @property
    def stem(self) -> str:
        """The name of its files."""
        return self.name if self.source is Source.FORMULAS else f"simulation_{self.name}"

    def make(
        self, folder: pathlib.Path, study: Study | None = None, sweep: pathlib.Path | None = None
    ) -> pathlib.Path:
        """Writes the figure and its table into the folder; returns the PNG."""
        source = {Source.FORMULAS: (), Source.FIRST_ROUND: (study,), Source.SWEEP: (sweep,)}
        table = self.table(*source[self.source])
        with style.look():
            style.save(self.draw(table), table, folder / self.stem)
        return folder / f"{self.stem}.png"


FIGURES = {
    figure.name: figure
    for figure in (
        NamedFigure(
            "updates_pca",
            "Figure 2",
            Source.FIRST_ROUND,
            "the updates of round 1 in two principal components, with b1 = 32 and with b1 = N",
            components.first_batches_table,
            components.draw_components,
        ),
        NamedFigure(
            "update_variance",
            "Figure 3",
            Source.FORMULAS,
            "the variance of an update by the first lemma, against b1 and b>1",
            noise.update_variance_table,
            noise.draw_update_variance,
        ),
        NamedFigure(
            "accuracy",
            "Figures 4 and 10",
            Source.SWEEP,
            "test accuracy against epsilon for all algorithms, and runs that found all clusters",
            accuracy.accuracy_table,
            accuracy.draw_accuracy,
        ),
        NamedFigure(
            "minority_accuracy",
            "Figures 5 and 11",
            Source.SWEEP,
            "the same for the minority cluster",
            accuracy.minority_table,
            accuracy.draw_minority,
        ),
        NamedFigure(
            "mss_epsilon",
            "Figure 6",
            Source.FIRST_ROUND,
            "MSS against epsilon in large and in small silos",
            separation.mss_table,
            separation.draw_mss_epsilon,
        ),
        NamedFigure(
            "losses_and_gradients",
            "Figure 7",
            Source.FORMULAS,
            "the example in one dimension: losses mislead early, gradients late",
            one_dimension.losses_table,
            one_dimension.draw_losses,
        ),
        NamedFigure(
            "later_batch_pca",
            "Figure 8",
            Source.FIRST_ROUND,
            "the updates of round 1 and MSS for growing b>1",
            components.later_batches_table,
            components.draw_components,
        ),
        NamedFigure(
            "mss_candidates",
            "Figure 9",
            Source.FIRST_ROUND,
            "MSS against the number of clusters M', per epsilon and seed",
            separation.mss_candidates_table,
            separation.draw_mss_candidates,
        ),
        NamedFigure(
            "mss_detection",
            "Figure 12",
            Source.FIRST_ROUND,
            "MSS of each experiment, and whether it found the clusters",
            separation.mss_table,
            separation.draw_mss_detection,
        ),
        NamedFigure(
            "em_iterations",
            "Figure 13",
            Source.FIRST_ROUND,
            "EM iterations against b1",
            lemmas.em_iterations_table,
            lemmas.draw_em_iterations,
        ),
        NamedFigure(
            "noise_scale",
            "Figure 14",
            Source.FORMULAS,
            "the noise multiplier z against b1 and b>1",
            noise.noise_scale_table,
            noise.draw_noise_scale,
        ),
        NamedFigure(
            "centre_distance",
            "Figure 15, left",
            Source.FIRST_ROUND,
            "the distance between cluster centres against b1, without noise",
            lemmas.centre_distance_table,
            lemmas.draw_centre_distance,
        ),
        NamedFigure(
            "noise_ratio",
            "Figure 15, right",
            Source.FORMULAS,
            "what a full first batch costs: the ratio of z against epsilon",
            noise.noise_ratio_table,
            noise.draw_noise_ratio,
        ),
        NamedFigure(
            "joint_accounting",
            "ours",
            Source.FORMULAS,
            "z by one composition against the authors' split of the budget",
            noise.joint_accounting_table,
            noise.draw_joint_accounting,
        ),
        NamedFigure(
            "mss_null",
            "ours",
            Source.FIRST_ROUND,
            "the confidence in round 1 against federations without clusters",
            separation.null_table,
            separation.draw_null,
        ),
        NamedFigure(
            "accuracy_rounds",
            "ours",
            Source.SWEEP,
            "accuracy over the rounds, with R-DPCFL's stages marked",
            accuracy.rounds_table,
            accuracy.draw_rounds,
        ),
        NamedFigure(
            "variance_check",
            "ours",
            Source.FIRST_ROUND,
            "the first lemma held against real updates",
            lemmas.variance_table,
            lemmas.draw_variance,
        ),
        NamedFigure(
            "overlap_check",
            "ours",
            Source.FIRST_ROUND,
            "the second lemma held against real updates",
            lemmas.overlap_table,
            lemmas.draw_overlap,
        ),
    )
}
