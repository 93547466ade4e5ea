"""The report of a sweep: the tables over its seeds, the figures, and every run with its hash.

From the files in the sweep's folder alone. It shows exact accuracies and true clusters, and is for
simulations only.
"""

import json
import pathlib
import shlex

import pandas as pd

from experiments import sweep_folder, sweep_results
from experiments.plots import catalogue
from experiments.plots.style import ALGORITHMS
from experiments.reporting import page
from rdpcfl_tff.errors import UserError

FIGURES = "figures"

_SETTING = ["dataset", "shift"]
_VARIED = ["dataset", "shift", "algorithm", "epsilon", "seed"]
_HASH_SHOWN = 12
_MEASURES = {
    "test_accuracy_mean": "Test accuracy, mean of all clients",
    "test_accuracy_minority": "Test accuracy, mean of the minority cluster",
    "test_accuracy_worst": "Test accuracy of the worst client",
}


def report(folder: pathlib.Path) -> str:
    """The page of the sweep in `folder`; runs that are not finished are named, not counted."""
    runs = sweep_results.load(folder).sort_values(_VARIED)
    planned = sweep_folder.planned_runs(folder)
    unfinished = [name for name in planned if not sweep_folder.finished(folder, name)]
    pictures, left_out = _figures(folder)
    return page.page(
        f"Sweep {folder.resolve().name}",
        f"{len(runs)} finished runs; of the {len(planned)} that were asked for last, "
        f"{len(planned) - len(unfinished)} are finished. This page shows exact accuracies and "
        "true clusters: it is for simulations only, and no part of what the privacy statements "
        "cover.",
        [
            ("Results", _results(runs)),
            ("Privacy", _privacy(folder, runs)),
            ("Figures", pictures),
            ("Clients", _clients(folder, runs)),
            ("Configuration", _configuration(folder, runs)),
            ("Runs", _runs(runs)),
            ("What was not run", _not_run(folder, unfinished, left_out)),
        ],
    )


def _results(runs: pd.DataFrame) -> str:
    content = page.text(
        "Mean over the seeds, ± the standard deviation over them if there are several, and the "
        "number of runs if it is not the same everywhere."
    )
    counts = runs.groupby([*_SETTING, "algorithm", "epsilon"]).size()
    for (dataset, shift), group in runs.groupby(_SETTING, sort=False):
        content += page.heading(f"{dataset}, {shift}")
        for measure, caption in _MEASURES.items():
            content += _by_algorithm(
                group, caption, lambda cell, measure=measure: _spread(cell[measure], counts)
            )
        content += _by_algorithm(
            group[group["algorithm"].isin(sweep_results.CLUSTERING)],
            "Runs that end with exactly the true clusters",
            lambda cell: f"{int(cell['exact'].sum())} of {len(cell)}",
        )
    return content


def _spread(values: pd.Series, counts: pd.Series) -> str:
    """With the number of runs, if that is in question."""
    words = sweep_results.spread(values)
    return words if counts.nunique() == 1 else f"{words} ({len(values)})"


def _by_algorithm(group: pd.DataFrame, caption: str, show) -> str:
    """A line per algorithm, a column per epsilon."""
    if group.empty:
        return ""
    epsilons = sorted(group["epsilon"].unique())
    rows = []
    for algorithm in _in_order(group["algorithm"]):
        cells = [
            group[(group["algorithm"] == algorithm) & (group["epsilon"] == epsilon)]
            for epsilon in epsilons
        ]
        rows.append(
            [ALGORITHMS[algorithm][0], *("-" if cell.empty else show(cell) for cell in cells)]
        )
    return page.table(caption, ["", *(_budget(epsilon) for epsilon in epsilons)], rows)


def _privacy(folder: pathlib.Path, runs: pd.DataFrame) -> str:
    rows = []
    for (algorithm, dataset, epsilon), group in runs.groupby(
        ["algorithm", "dataset", "epsilon"], sort=False
    ):
        promises = [
            one
            for run in group["run_folder"]
            for one in json.loads((folder / run / "privacy.json").read_text())["statements"]
        ]
        noise = sorted({f"{one['public']['noise_multiplier']:.3f}" for one in promises})
        rows.append(
            [
                ALGORITHMS[algorithm][0],
                dataset,
                _budget(epsilon),
                f"{group['epsilon_spent'].max():.3f}",
                ", ".join(f"{delta:g}" for delta in sorted({one["delta"] for one in promises})),
                ", ".join(noise),
                ", ".join(sorted({one["adjacency"].replace("_", " ") for one in promises})),
            ]
        )
    header = ["", "data set", "budget", "epsilon spent", "delta", "noise multiplier", "adjacency"]
    return page.table(
        "What every client of a run was promised, for one of its records", header, rows
    ) + page.text(
        "Each promise is that of one run by itself; privacy.txt in a run's folder has all of "
        "it. Runs on the same records add up: who sees several of them has a weaker promise, "
        "and choosing among runs by their accuracy is covered by none of them."
    )


def _figures(folder: pathlib.Path) -> tuple[str, list[str]]:
    """The figures that there are, or that the runs suffice for; and what is missing, and why."""
    shown, left_out, not_drawn = "", [], []
    for figure in catalogue.FIGURES.values():
        path = folder / FIGURES / f"{figure.stem}.png"
        if figure.source is catalogue.Source.SWEEP:
            try:
                path = figure.make(folder / FIGURES, sweep=folder)
            except UserError as error:
                left_out.append(f"Figure {figure.name}: {error}")
                continue
        if path.exists():
            shown += page.picture(path, f"{figure.paper}: {figure.shows}.")
        else:
            not_drawn.append(figure.name)
    if not_drawn:
        left_out.append(
            f"Figures {', '.join(not_drawn)}: `python -m experiments.figures --figure=all "
            f"--output_dir={folder / FIGURES}` draws them."
        )
    return shown, left_out


def _clients(folder: pathlib.Path, runs: pd.DataFrame) -> str:
    tables = [
        pd.read_csv(folder / run["run_folder"] / "simulation_clients.csv").assign(
            **{name: run[name] for name in _VARIED}
        )
        for run in runs.to_dict("records")
        if (folder / run["run_folder"] / "simulation_clients.csv").exists()
    ]
    if not tables:
        return page.text("No run has come to its test records.")
    content = page.text("Each client's test accuracy on its own model, mean over the seeds.")
    clients = pd.concat(tables)
    for (dataset, shift, epsilon), group in clients.groupby([*_SETTING, "epsilon"], sort=False):
        algorithms = _in_order(group["algorithm"])
        means = group.groupby(["true_cluster", "client", "algorithm"])["test_accuracy"].mean()
        by_client = means.unstack().reindex(columns=algorithms)
        rows = [
            [str(client), str(cluster), *("-" if pd.isna(a) else f"{a:.4f}" for a in accuracies)]
            for (cluster, client), accuracies in zip(
                by_client.index, by_client.to_numpy(), strict=True
            )
        ]
        header = ["client", "true cluster", *(ALGORITHMS[name][0] for name in algorithms)]
        title = f"{dataset}, {shift}, {_budget(epsilon)}"
        content += page.folded(title, page.table(title, header, rows))
    return content


def _configuration(folder: pathlib.Path, runs: pd.DataFrame) -> str:
    config = json.loads((folder / runs["run_folder"].iloc[0] / "config.json").read_text())["config"]
    facts = []
    for name in config:
        values = runs[name].drop_duplicates().tolist()
        facts.append(
            (name, ", ".join("none" if pd.isna(value) else str(value) for value in values))
        )
    command = shlex.join(["python", "-m", "experiments.sweep", *sweep_folder.command(folder)[1:]])
    return page.text("The command:") + page.verbatim(command) + page.facts(facts)


def _runs(runs: pd.DataFrame) -> str:
    header = ["run", "mean", "minority", "worst", "clusters", "epsilon spent", "hash"]
    rows = [
        [
            pathlib.PurePath(run["run_folder"]).name,
            *(f"{run[name]:.4f}" for name in _MEASURES),
            "exact" if run["exact"] else f"{run['misplaced_clients']:g} misplaced",
            f"{run['epsilon_spent']:.3f}",
            run["hash"][:_HASH_SHOWN],
        ]
        for run in runs.to_dict("records")
    ]
    return page.text(
        f"The first {_HASH_SHOWN} digits of the SHA-256 of each run's summary.json; the whole is "
        f"in {sweep_results.TABLE}.csv."
    ) + page.folded(f"All {len(rows)} runs", page.table("Test accuracy of every run", header, rows))


def _not_run(folder: pathlib.Path, unfinished: list[str], left_out: list[str]) -> str:
    lines = []
    for name in unfinished:
        rounds = sweep_folder.rounds_done(folder, name)
        state = f"{rounds} rounds are saved" if rounds else "not one round is saved"
        lines.append(f"{name}: {state}; its last words: {sweep_folder.last_words(folder, name)}")
    if not unfinished:
        lines.append("Every run that was asked for is finished.")
    return page.items([*lines, *left_out])


def _in_order(algorithms: pd.Series) -> list[str]:
    return [name for name in ALGORITHMS if name in set(algorithms)]


def _budget(epsilon: float) -> str:
    return f"epsilon {epsilon:g}" if epsilon < float("inf") else "not private"
