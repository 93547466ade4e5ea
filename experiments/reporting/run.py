"""The report of one run, from the files in its results folder alone.

It shows exact accuracies and true clusters, and is for simulations only.
"""

import json
import pathlib
import shlex
from typing import Any

import pandas as pd

from experiments import sweep_results
from experiments.reporting import page
from rdpcfl_tff.privacy import statement as statements

_ROUNDS_SHOWN = 20


def report(folder: pathlib.Path) -> str:
    """The page of the run in `folder`, which must be finished."""
    written = _json(folder / "config.json")
    summary = _json(folder / "summary.json")
    config = written["config"]
    promise = _json(folder / "privacy.json")["statements"]
    budget = "without privacy" if config["epsilon"] == "inf" else f"epsilon {config['epsilon']:g}"
    sections = [
        ("Result", _result(folder, summary)),
        ("Privacy", privacy(promise)),
        ("Figures", _figures(folder)),
    ]
    if (folder / "mixture.json").exists():
        sections.append(("Round 1", _first_round(_json(folder / "mixture.json"))))
    if (folder / "simulation_clients.csv").exists():
        sections.append(("Clients", _clients(folder, promise)))
    sections += [
        ("Rounds", _rounds(folder)),
        ("Configuration", _configuration(folder, written)),
        ("What was not run", page.items(_not_run(config, summary))),
    ]
    return page.page(
        f"{config['algorithm']} on {config['dataset']}, {config['shift']}, {budget}",
        f"One run of {summary['rounds']} rounds with seed {config['seed']}. This page shows exact "
        "accuracies and true clusters: it is for simulations only, and no part of what the privacy "
        "statement covers.",
        sections,
    )


def privacy(promise: list[dict[str, Any]]) -> str:
    """What is promised to each client."""
    parts = []
    for one in promise:
        title, facts = statements.in_words(one)
        clients = ", ".join(map(str, one["clients"]))
        parts.append(page.heading(title) + page.facts([("clients", clients), *facts]))
    return "".join(parts)


def _result(folder: pathlib.Path, summary: dict[str, Any]) -> str:
    accuracy = summary.get("simulation_test_accuracy", {})
    partition = summary.get("simulation_partition", {})
    spent = f"{summary['epsilon_spent']:.3f}" if summary["private"] else "not private"
    shown = [(f"test accuracy, {name}", f"{value:.4f}") for name, value in accuracy.items()]
    shown += [
        ("epsilon spent", spent),
        ("models in use", f"{summary['models_in_use']} of {summary['models']}"),
    ]
    if "misplaced_clients" in partition:
        shown.append(("clients in a wrong cluster", str(partition["misplaced_clients"])))
    if "minority_found" in partition:
        shown.append(("minority cluster found", "yes" if partition["minority_found"] else "no"))
    return page.numbers(shown) + page.facts(
        [("SHA-256 of summary.json", sweep_results.run_hash(folder))]
    )


def _figures(folder: pathlib.Path) -> str:
    path = folder / "simulation_run.png"
    if not path.exists():
        return page.text("This run has drawn no picture of itself.")
    return page.picture(
        path,
        "The noised updates of round 1, if the algorithm looks at them, and the clients' accuracy "
        "on their validation records over the rounds, with the stages marked.",
    )


def _first_round(mixture: dict[str, Any]) -> str:
    rows = [
        [
            str(one["num_clusters"]),
            *(f"{one[score]:.3f}" for score in ("default_mss", "null_mss", "paper_mss")),
        ]
        for one in mixture["count"]["candidates"]
    ]
    content = page.text(mixture["finding"]) + page.table(
        "How well separated the clusters are, for each number of them",
        [
            "M",
            "MSS, our mixture",
            "95 % of it without clusters",
            "MSS, the paper's mixture",
        ],
        rows,
    )
    if "mixture" in mixture:
        fitted = mixture["mixture"]
        content += page.facts(
            [
                ("MSS", f"{fitted['mss']:.4g}"),
                ("MPO", f"{fitted['mpo']:.4g}"),
                ("EM iterations", str(fitted["em_iterations"])),
                ("private selections from round", str(mixture["switch_round"])),
            ]
        )
    return content


def _clients(folder: pathlib.Path, promise: list[dict[str, Any]]) -> str:
    clients = pd.read_csv(folder / "simulation_clients.csv")
    assignments = pd.read_csv(folder / "assignments.csv")
    noise = {
        client: f"{one['public']['noise_multiplier']:.3f}"
        for one in promise
        for client in one["clients"]
    }
    header = ["client", *(["true cluster"] if "true_cluster" in clients else [])]
    header += ["model (rounds)", "test accuracy", "noise multiplier"]
    rows = []
    for row in clients.to_dict("records"):
        name = str(row["client"])
        cells = [name, *([str(row["true_cluster"])] if "true_cluster" in row else [])]
        trained = _spans(assignments["round"].tolist(), assignments[f"client_{name}"].tolist())
        rows.append([*cells, trained, f"{row['test_accuracy']:.4f}", noise.get(row["client"], "")])
    return page.table("Every client at the end of the run", header, rows)


def _spans(rounds: list[int], models: list[int]) -> str:
    """Which model was trained when, for example "0 (1), 2 (2-10)"."""
    spans: list[list[int]] = []
    for number, model in zip(rounds, models, strict=True):
        if spans and spans[-1][0] == model:
            spans[-1][2] = number
        else:
            spans.append([model, number, number])
    return ", ".join(
        f"{model} ({first})" if first == last else f"{model} ({first}-{last})"
        for model, first, last in spans
    )


def _rounds(folder: pathlib.Path) -> str:
    rounds = pd.read_csv(folder / "metrics.csv")
    accuracy = pd.read_csv(folder / "simulation_metrics.csv")
    both = rounds.merge(accuracy, on="round")
    measures = [name for name in accuracy.columns if name != "round"]
    step = -(-len(both) // _ROUNDS_SHOWN)
    shown = both.iloc[::-1].iloc[::step].iloc[::-1]  # the last round is always there
    note = "" if step <= 1 else f" (every {step}th of those measured; all are in the CSV files)"
    return page.table(
        f"Accuracy on the validation records{note}",
        ["round", "stage", "cluster sizes", "epsilon spent", *measures],
        [
            [
                str(row["round"]),
                row["stage"],
                str(row["cluster_sizes"]),
                f"{row['epsilon_spent']:.3f}",
                *(f"{row[name]:.4f}" for name in measures),
            ]
            for row in shown.to_dict("records")
        ],
    )


def _configuration(folder: pathlib.Path, written: dict[str, Any]) -> str:
    fields = [(name, json.dumps(value)) for name, value in written["config"].items()]
    return (
        page.text("The command:")
        + page.verbatim(shlex.join(["python", "-m", "experiments.main", *written["command"][1:]]))
        + page.facts(fields)
        + page.facts([("folder", folder.name)])
    )


def _not_run(config: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    lines = [
        "One seed only: nothing here tells how much the numbers spread over splits, initial "
        "weights and noise.",
        "One algorithm only: for the others, see `python -m experiments.sweep`.",
    ]
    if summary["rounds"] < config["rounds"]:
        lines.insert(0, f"Rounds {summary['rounds'] + 1} to {config['rounds']}.")
    if not summary["private"]:
        lines.append("Privacy: this run has none.")
    elif config["noise_seed"] == "seed":
        lines.append("Noise that nobody can repeat: this run's follows from its seed.")
    return lines


def _json(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text())
