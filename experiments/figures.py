"""Draws the paper's figures and ours: `python -m experiments.figures --figure=all`.

`--figure=list` tells their names. With a results folder in place of the flag, as in
`python -m experiments.figures results/FOLDER`, it draws that finished run again.
"""

import pathlib
from typing import TYPE_CHECKING

import tqdm
from absl import flags

from experiments import command_line, presets
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache, silos, sources
from rdpcfl_tff.errors import UserError

if TYPE_CHECKING:
    from experiments.plots.catalogue import NamedFigure
    from experiments.plots.study import Study

_FIGURE = flags.DEFINE_list(
    "figure", [], "Names with commas; all: every figure; list: what there is."
)
_SWEEP = flags.DEFINE_string("sweep", None, "The folder of a sweep, for the figures on accuracy.")
_DATASET = flags.DEFINE_enum(
    "dataset", "mnist", sources.DATASETS, "The data set of the figures on round 1."
)
_SHIFT = flags.DEFINE_enum("shift", "rotation", silos.SHIFTS, "How the clusters' data differ.")
_SAMPLES_PER_CLIENT = flags.DEFINE_integer(
    "samples_per_client", None, "Records per client in large silos (default: all there are)."
)
_SMALL_SAMPLES = flags.DEFINE_integer(
    "small_samples", None, "Records per client in small silos (default: a tenth of all)."
)
_EPS = flags.DEFINE_list("eps", ["3", "4", "5", "10", "15"], "Budgets in the figures on round 1.")
_SEEDS = flags.DEFINE_integer(
    "seeds", 5, "How many splits, each with initial weights of its own.", lower_bound=1
)
_NOISE_SEEDS = flags.DEFINE_integer(
    "noise_seeds", 4, "How many draws of the noise for each setting.", lower_bound=2
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "As for experiments.main.")
_CACHE_DIR = flags.DEFINE_string("cache_dir", None, "As for experiments.main.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "results/figures", "Where the figures go.")

# A tenth of a small data set would leave no room for batches of 32.
_LEAST_SMALL_SAMPLES = 125


def main(arguments: list[str]) -> None:
    """Draws the figures that are named, or the run in the given results folder."""
    if not _FIGURE.value:
        _draw_run(arguments)
        return
    command_line.no_arguments(arguments)
    epsilons = command_line.epsilons(_EPS)
    from experiments.plots import catalogue

    if _FIGURE.value == ["list"]:
        for figure in catalogue.FIGURES.values():
            print(f"{figure.name:21} {figure.paper:17} {figure.source.value:22} {figure.shows}")
        return
    everything = _FIGURE.value == ["all"]
    unknown = [name for name in _FIGURE.value if name not in catalogue.FIGURES]
    if unknown and not everything:
        raise UserError(f"--figure={unknown[0]} is unknown: --figure=list names them all")
    chosen = [
        figure
        for figure in catalogue.FIGURES.values()
        if everything or figure.name in _FIGURE.value
    ]
    _make(chosen, epsilons, go_on=everything)


def _make(chosen: list["NamedFigure"], epsilons: tuple[float, ...], go_on: bool) -> None:
    """Makes one figure after the other; what cannot be made is told at the end, or at once."""
    from experiments.plots.catalogue import Source

    output_dir = pathlib.Path(_OUTPUT_DIR.value)
    sweep = pathlib.Path(_SWEEP.value) if _SWEEP.value else None
    study, missing = None, {}
    if sweep is None:
        missing[Source.SWEEP] = "it needs runs: give --sweep=FOLDER of `experiments.sweep`"
    left_out: dict[str, str] = {}
    with tqdm.tqdm(total=len(chosen), unit="figure", dynamic_ncols=True) as bar:
        if any(figure.source is Source.FIRST_ROUND for figure in chosen):
            try:
                study = _study(epsilons, bar)
            except sources.NoSourceError as error:
                missing[Source.FIRST_ROUND] = str(error)
        for figure in chosen:
            bar.set_description(figure.name)
            try:
                if figure.source in missing:
                    raise UserError(missing[figure.source])
                bar.write(str(figure.make(output_dir, study, sweep)))
            except UserError as error:
                if not go_on:
                    raise UserError(f"--figure={figure.name}: {error}") from error
                left_out[figure.name] = str(error)
            bar.set_postfix_str("")
            bar.update()
    for name, reason in left_out.items():
        print(f"not made: {name}: {reason}")


def _study(epsilons: tuple[float, ...], bar: tqdm.tqdm) -> "Study":
    from experiments.plots.study import Study

    cache_dir = pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else cache.default_folder()
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    dataset = sources.load(_DATASET.value, data_dir, cache_dir)
    config = RunConfig(
        algorithm="rdpcfl",
        dataset=_DATASET.value,
        shift=_SHIFT.value,
        samples_per_client=_SAMPLES_PER_CLIENT.value,
        **presets.settings("paper", "rdpcfl", _DATASET.value, _SHIFT.value),
    )
    share = len(dataset.train_labels) // max(config.cluster_sizes)
    trainings = 0

    def client_done() -> None:
        nonlocal trainings
        trainings += 1
        bar.set_postfix_str(f"{trainings} clients' first rounds")

    return Study(
        config,
        dataset,
        cache_dir,
        epsilons,
        _SEEDS.value,
        _NOISE_SEEDS.value,
        _SMALL_SAMPLES.value or max(share // 10, _LEAST_SMALL_SAMPLES),
        client_done,
    )


def _draw_run(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise UserError(
            "name one results folder, as in `python -m experiments.figures results/X`, or a "
            "figure, as in --figure=all"
        )
    directory = pathlib.Path(arguments[0])
    if not (directory / "summary.json").exists():
        raise UserError(f"{directory} holds no finished run: summary.json is missing")
    from rdpcfl_tff.training.pictures import draw_run

    print(draw_run(directory))


if __name__ == "__main__":
    command_line.run(main)
