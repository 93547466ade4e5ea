"""Plans a run: `python -m experiments.plan --clients=12 --records=3000 --eps=4`.

From public numbers only: the noise, what each stage costs, whether round 1 will find the clusters,
and what it would take if not. docs/plan.md says how the forecast works and how good it is.
"""

import dataclasses
import json
import pathlib

import pandas as pd
from absl import flags

from experiments import command_line
from experiments.plots import planned, style
from rdpcfl_tff import outlook, storage
from rdpcfl_tff.clustering import forecast
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache, silos, sources
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy.accounting import Schedule

_CLIENTS = flags.DEFINE_integer("clients", None, "n, the number of clients.", lower_bound=4)
_CLUSTERS = flags.DEFINE_integer(
    "clusters", outlook.EXPECTED_CLUSTERS, "M, how many clusters you expect, of even sizes."
)
_CLUSTER_SIZES = flags.DEFINE_list(
    "cluster_sizes", None, "Clients in each cluster, if not even: instead of the two above."
)
_RECORDS = flags.DEFINE_integer("records", None, "N, the train records of a client.")
_EPS = flags.DEFINE_float("eps", None, "epsilon, each client's privacy budget.")
_DELTA = flags.DEFINE_float("delta", 1e-4, "delta, the other half of the budget; below 1/N.")
_ROUNDS = flags.DEFINE_integer("rounds", 200, "E, the number of rounds.")
_LOCAL_EPOCHS = flags.DEFINE_integer("local_epochs", 1, "K, local epochs per round.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "b, the expected batch size after round 1.")
_FIRST_ROUND_NOISE = flags.DEFINE_float(
    "first_round_noise_multiplier", None, "z of round 1 (default: that of all rounds)."
)
_EPS_SELECT_RATIO = flags.DEFINE_float("eps_select_ratio", 0.03, "As for experiments.main.")
_SELECTION_RATIO = flags.DEFINE_float("selection_ratio", 0.1, "As for experiments.main.")
_PARAMETERS = flags.DEFINE_integer(
    "parameters", 28_938, "p, the model's parameters (default: the paper's CNN).", lower_bound=1000
)
_SIGNAL = flags.DEFINE_float(
    "signal",
    None,
    "The distance of the two nearest clusters' mean clipped gradients, in units of the clip norm "
    f"(default: rotated MNIST's, {forecast.MNIST_DISTANCE}).",
)
_PROXY = flags.DEFINE_enum(
    "proxy", None, sources.DATASETS, "A public data set to measure the signal on instead."
)
_SHIFT = flags.DEFINE_enum(
    "shift", "rotation", silos.SHIFTS, "How the clusters of --proxy are made to differ."
)
_OPTIMIZE = flags.DEFINE_bool(
    "optimize", False, "Propose the noise of round 1, and a batch size at which it works."
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "As for experiments.main, for --proxy.")
_CACHE_DIR = flags.DEFINE_string("cache_dir", None, "As for experiments.main, for --proxy.")
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "The results folder; it must be empty (default: results/<name and time>)."
)


def main(arguments: list[str]) -> None:
    """Prints the plan, and writes it as a table, as JSON and as a picture."""
    command_line.no_arguments(arguments)
    for flag in (_RECORDS, _EPS):
        if flag.value is None:
            raise UserError(f"--{flag.name} is missing: a plan needs --records and --eps")
    output_dir = command_line.results_folder(_OUTPUT_DIR, "plan")
    sizes = _cluster_sizes()
    run = _planned_run(sizes, _signal(len(sizes)))
    runs = {"as given": run}
    if _OPTIMIZE.value:
        runs["proposed"] = outlook.optimised(run)
    limits = {
        "smallest N": outlook.smallest_records(run),
        "largest b": outlook.largest_batch_size(run),
        "smallest eps": outlook.smallest_epsilon(run),
    }
    report = "\n".join([_title(run), *_table(runs), *_limits(limits), *_proposal(runs)])
    curves = _curves(run)
    figure = planned.draw(curves, {name: one.budget_shares for name, one in runs.items()})
    style.save(figure, curves, output_dir / "plan")
    content = {"runs": {name: _numbers(one) for name, one in runs.items()}, "limits": limits}
    with storage.explained(output_dir, "choose another --output_dir"):
        for name, text in (
            ("plan.txt", report + "\n"),
            ("plan.json", json.dumps(content, indent=2) + "\n"),
        ):
            storage.write_atomically(output_dir / name, [text.encode()])
    print(f"{report}\nresults: {output_dir}")


def _cluster_sizes() -> tuple[int, ...]:
    if _CLUSTER_SIZES.value is None:
        if _CLIENTS.value is None:
            raise UserError("how many clients? give --clients, or --cluster_sizes")
        return outlook.even_clusters(_CLIENTS.value, _CLUSTERS.value)
    sizes = command_line.whole_numbers(_CLUSTER_SIZES)
    if _CLIENTS.value is not None and sum(sizes) != _CLIENTS.value:
        raise UserError(
            f"--cluster_sizes={','.join(_CLUSTER_SIZES.value)} are {sum(sizes)} clients, and "
            f"--clients={_CLIENTS.value}: leave out one of the two"
        )
    if len(sizes) < 2 or len(sizes) == sum(sizes):
        raise UserError(
            f"--cluster_sizes={','.join(_CLUSTER_SIZES.value)}: at least 2 clusters, and not all "
            "of one client"
        )
    return sizes


def _signal(num_clusters: int) -> forecast.Signal:
    if _PROXY.value is None:
        distance = forecast.MNIST_DISTANCE if _SIGNAL.value is None else _SIGNAL.value
        return forecast.Signal.from_distance(distance, num_clusters)
    if _SIGNAL.value is not None:
        raise UserError("--signal and --proxy say the same thing: give only one of them")
    cache_dir = pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else cache.default_folder()
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    dataset = sources.load(_PROXY.value, data_dir, cache_dir)
    from experiments import proxy  # TensorFlow takes seconds to import

    return proxy.measure(dataset, _SHIFT.value, num_clusters, cache_dir)


def _planned_run(cluster_sizes: tuple[int, ...], signal: forecast.Signal) -> outlook.PlannedRun:
    config = RunConfig(
        cluster_sizes=cluster_sizes,
        epsilon=_EPS.value,
        delta=_DELTA.value,
        rounds=_ROUNDS.value,
        local_epochs=_LOCAL_EPOCHS.value,
        batch_size=_BATCH_SIZE.value,
        first_round_noise_multiplier=_FIRST_ROUND_NOISE.value,
        eps_select_ratio=_EPS_SELECT_RATIO.value,
        selection_ratio=_SELECTION_RATIO.value,
    )
    run = outlook.PlannedRun(
        schedule=Schedule(
            records=_RECORDS.value,
            rounds=config.rounds,
            batch_size=config.batch_size,
            first_batch_size=_RECORDS.value,
            local_epochs=config.local_epochs,
            selections=config.selections,
            epsilon_select=config.epsilon_select,
        ),
        epsilon=config.epsilon,
        delta=config.delta,
        cluster_sizes=cluster_sizes,
        num_parameters=_PARAMETERS.value,
        signal=signal,
        first_round_noise_multiplier=_FIRST_ROUND_NOISE.value,
    )
    run.noise_multiplier  # noqa: B018 (a budget that cannot be kept is told before the work)
    return run


def _title(run: outlook.PlannedRun) -> str:
    sizes = ", ".join(map(str, run.cluster_sizes))
    return (
        f"{sum(run.cluster_sizes)} clients in clusters of {sizes}, N={run.schedule.records} train "
        f"records each, eps={run.epsilon:g}, delta={run.delta:g}, E={run.schedule.rounds}, "
        f"K={run.schedule.local_epochs}, p={run.num_parameters}\n"
        f"clusters: nearest centres {run.signal.distance:.3f} c apart; records spread by "
        f"{run.signal.spread:.2f} c^2 over {run.signal.spread_rank} directions, "
        f"{run.signal.spread_along:.4f} c^2 along each axis of the centres"
    )


def _numbers(run: outlook.PlannedRun) -> dict[str, float]:
    expected = run.forecast()
    return {
        "batch size b": run.schedule.batch_size,
        "noise multiplier, round 1": run.first_round_noise_multiplier or run.noise_multiplier,
        "noise multiplier, later rounds": run.noise_multiplier,
        **{f"share of the RDP: {stage}": share for stage, share in run.budget_shares.items()},
        "noise of an update, round 1 (norm, in lr c)": run.first_noise * run.num_parameters**0.5,
        "noise of an update, later rounds": run.later_noise * run.num_parameters**0.5,
        "expected MSS": expected.mss,
        "exact partition, M given": expected.exact,
    }


def _table(runs: dict[str, outlook.PlannedRun]) -> list[str]:
    columns = {name: _numbers(run) for name, run in runs.items()}
    rows = next(iter(columns.values()))
    width = max(map(len, rows)) + 2
    lines = ["", " " * width + "".join(f"{name:>12}" for name in columns)]
    for row in rows:
        percent = row.startswith(("share", "exact"))
        cells = (f"{numbers[row]:{'.0%' if percent else '.4g'}}" for numbers in columns.values())
        lines.append(f"{row:{width}}" + "".join(f"{cell:>12}" for cell in cells))
    return lines


def _limits(limits: dict[str, float | None]) -> list[str]:
    def shown(name: str, nothing: str) -> str:
        value = limits[name]
        if value is None:
            return nothing
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return [
        "",
        f"the clusters should be found, all else as given (in {outlook.LIKELY:.0%} of the drawn "
        "federations at least):",
        f"  from N = {shown('smallest N', 'no N below 1/delta')} on",
        f"  up to b = {shown('largest b', 'none')} after round 1",
        f"  from eps = {shown('smallest eps', 'none up to 100')} on",
    ]


def _proposal(runs: dict[str, outlook.PlannedRun]) -> list[str]:
    if "proposed" not in runs:
        return []
    run = runs["proposed"]
    flags_of_main = (
        f"--batch_size={run.schedule.batch_size} "
        f"--first_round_noise_multiplier={run.first_round_noise_multiplier:.4g}"
    )
    if not run.should_work():
        return ["", "no batch size and no noise of round 1 makes it work: see the limits above"]
    return ["", f"proposed: {flags_of_main} (and a full batch in round 1, the default)"]


def _curves(run: outlook.PlannedRun) -> pd.DataFrame:
    """The forecast for more and fewer records, at the budget and at half and twice of it."""
    rows = []
    for epsilon in (run.epsilon / 2, run.epsilon, 2 * run.epsilon):
        for factor in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4):
            records = round(run.schedule.records * factor)
            if not max(2, run.schedule.batch_size) <= records < 1 / run.delta:
                continue
            changed = run.with_epsilon(epsilon).changed(records=records)
            try:
                expected = changed.forecast()
            except UserError:  # the budget is spent before training begins
                continue
            rows.append(
                {
                    "epsilon": epsilon,
                    "records": records,
                    "noise_multiplier": changed.noise_multiplier,
                    **dataclasses.asdict(expected),
                }
            )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    command_line.run(main)
