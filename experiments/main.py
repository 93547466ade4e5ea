"""Trains one model per cluster of clients: `python -m experiments.main --dataset=mnist`.

Reads the flags, finds the data, builds the silos, runs, and prints a summary. Every run has its own
results folder.
"""

import contextlib
import dataclasses
import pathlib
import sys
import time

from absl import flags

from experiments import command_line, presets
from rdpcfl_tff import config as configs
from rdpcfl_tff.data import cache, own_folder, own_store, silos, sources
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.errors import UserError, WorkerError
from rdpcfl_tff.execution import Execution

_ALGORITHM = flags.DEFINE_enum(
    "algorithm",
    "rdpcfl",
    configs.ALGORITHMS,
    "rdpcfl: the paper's algorithm; ifca, mr_mtl, local, global: its baselines; odpcfl: the "
    "oracle that knows the true clusters.",
)
_DATASET = flags.DEFINE_string(
    "dataset",
    "mnist",
    f"<{'|'.join(sources.DATASETS)}>, or folder:PATH for data of your own, one file per client.",
)
flags.register_validator(
    "dataset",
    lambda name: name in sources.DATASETS or name.startswith(own_folder.PREFIX),
    f"value should be one of <{'|'.join(sources.DATASETS)}> or folder:PATH",
)
_FALLBACK = flags.DEFINE_enum(
    "fallback_dataset",
    None,
    sources.DATASETS,
    "The data set to take if no source of --dataset can be reached.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "A folder with the data set's published files; looked at first."
)
_CACHE_DIR = flags.DEFINE_string(
    "cache_dir", None, "Where downloads and silos are kept (default: ~/.cache/rdpcfl_tff)."
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "The results folder; it must be empty (default: results/<name and time>)."
)
_PRESET = flags.DEFINE_enum(
    "preset",
    "paper",
    presets.PRESETS,
    "paper: the paper's run, hours long; quick: minutes; mini: a minute or two, for sweeps; "
    "smoke: only shows that it runs.",
)
_SHIFT = flags.DEFINE_enum(
    "shift", "rotation", ["rotation", "label_flip"], "How the clusters' data differ."
)
_CLUSTER_SIZES = flags.DEFINE_list(
    "cluster_sizes", ["3", "6", "6", "6"], "Clients in each true cluster."
)
_EPS = flags.DEFINE_float(
    "eps", 3.0, "epsilon, each client's privacy budget; inf trains without privacy."
)
_DELTA = flags.DEFINE_float("delta", 1e-4, "delta, the other half of the budget; below 1/N.")
_SEED = flags.DEFINE_integer("seed", 0, "Decides the split, the initial weights and the noise.")
_NOISE_SEED = flags.DEFINE_enum(
    "noise_seed",
    "seed",
    ["seed", "os"],
    "seed: noise that the seed repeats, for simulations; os: noise that nobody can repeat.",
)
_STOP_IF_UNSURE = flags.DEFINE_bool(
    "stop_if_unsure", False, "End after round 1 if it leaves R-DPCFL's clusters in doubt."
)
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every", 1, "Rounds between two checkpoints.", lower_bound=1
)
_HALT_AFTER = flags.DEFINE_integer(
    "halt_after",
    None,
    "End after this round; the same command without it goes on (default: the last round).",
    lower_bound=1,
)
_WORKERS = flags.DEFINE_list(
    "workers",
    [],
    "host:port of TFF workers on other machines (docs/scaling.md); default: one on this machine.",
)
_WORKER_RETRIES = flags.DEFINE_integer(
    "worker_retries", 2, "How often, in the whole run, a worker that died is started again."
)
_DEAD_WORKER = flags.DEFINE_enum(
    "dead_worker",
    "move",
    ["move", "stop"],
    "A worker of --workers that stays lost: move its clients to others that have their silos, or "
    "stop.",
)

_RUNTIME = flags.DEFINE_enum(
    "runtime",
    "auto",
    ["auto", "worker", "in_process"],
    "Where the clients train: in TFF's worker, which has the CPU only, or in this process, with "
    "GPUs; auto: in this process if TensorFlow sees a GPU.",
)
_CLIENT_DEVICES = flags.DEFINE_list(
    "client_devices",
    [],
    "The devices of --runtime=in_process, for example GPU:0,GPU:1 (default: all GPUs, or the CPU).",
)

# Without a value of its own, each of these takes its preset's.
_OVERRIDES = {
    "model": flags.DEFINE_string(
        "model",
        None,
        f"<{'|'.join(configs.MODELS)}>, or module:function for a Keras model of your own (default: "
        "the paper's for the data set; cnn for other images, mlp for other records).",
    ),
    "samples_per_client": flags.DEFINE_integer(
        "samples_per_client", None, "Train and validation records per client."
    ),
    "overlap": flags.DEFINE_bool(
        "overlap", None, "Let the clients of a cluster have records in common (default: no)."
    ),
    "rounds": flags.DEFINE_integer("rounds", None, "E, the number of rounds."),
    "local_epochs": flags.DEFINE_integer("local_epochs", None, "K, local epochs per round."),
    "batch_size": flags.DEFINE_integer("batch_size", None, "b, the expected batch size."),
    "first_batch_size": flags.DEFINE_integer(
        "first_batch_size", None, "b1, the batch size of R-DPCFL's round 1 (default: full batch)."
    ),
    "first_round_noise_multiplier": flags.DEFINE_string(
        "first_round_noise_multiplier",
        None,
        "R-DPCFL's noise multiplier in round 1, or auto (default: that of all rounds).",
    ),
    "num_clusters": flags.DEFINE_integer(
        "num_clusters", None, "M, the number of clusters (default: R-DPCFL finds it)."
    ),
    "mixture": flags.DEFINE_enum(
        "mixture", None, ["default", "paper"], "How R-DPCFL's mixture is fitted (default: ours)."
    ),
    "eps_select_ratio": flags.DEFINE_float(
        "eps_select_ratio", None, "The epsilon of one private selection, as a part of --eps."
    ),
    "selection_ratio": flags.DEFINE_float(
        "selection_ratio", None, "The part of all rounds that begin with a private selection."
    ),
    "selection_rounds": flags.DEFINE_integer(
        "selection_rounds", None, "How many rounds do (default: by --selection_ratio)."
    ),
    "dp_engine": flags.DEFINE_enum(
        "dp_engine",
        None,
        ["fast", "tf_privacy"],
        "fast: our clipping; tf_privacy: TF Privacy's optimizer, the same result, much slower.",
    ),
    "weighted_averages": flags.DEFINE_bool(
        "weighted_averages",
        None,
        "Let less noisy updates count for more, where clients are unequal (default: no).",
    ),
    "mr_mtl_lambda": flags.DEFINE_float(
        "mr_mtl_lambda",
        None,
        "The strength of MR-MTL's pull to the mean of all models (default: 1; quick, mini: less, "
        "as their steps are larger).",
    ),
    "mr_mtl_clip_proximal": flags.DEFINE_bool(
        "mr_mtl_clip_proximal",
        None,
        "Clip MR-MTL's pull with each gradient, as Liu et al. (2022) do (default: add it after "
        "the noise). Slower.",
    ),
    "learning_rate": flags.DEFINE_float("lr", None, "eta, the clients' learning rate."),
    "clip_norm": flags.DEFINE_float("clip", None, "c, the L2 norm that gradients are clipped to."),
    "eval_every": flags.DEFINE_integer(
        "eval_every", None, "Rounds between two looks at the validation accuracy."
    ),
    "client_dropout": flags.DEFINE_float(
        "client_dropout", None, "The probability that a client is missing in a round."
    ),
}


def run_config(dataset: str) -> configs.RunConfig:
    """The config that the flags and their preset describe, for this data set."""
    given = {name: flag.value for name, flag in _OVERRIDES.items() if flag.value is not None}
    with contextlib.suppress(KeyError, ValueError):  # not given, or auto
        given["first_round_noise_multiplier"] = float(given["first_round_noise_multiplier"])
    return configs.RunConfig(
        algorithm=_ALGORITHM.value,
        dataset=dataset,
        shift="none" if _is_own(dataset) else _SHIFT.value,
        cluster_sizes=() if _is_own(dataset) else _cluster_sizes(_CLUSTER_SIZES.value),
        epsilon=_EPS.value,
        delta=_DELTA.value,
        seed=_SEED.value,
        noise_seed=_NOISE_SEED.value,
        **(presets.settings(_PRESET.value, _ALGORITHM.value, dataset, _SHIFT.value) | given),
    )


def _is_own(dataset: str) -> bool:
    return dataset.startswith(own_folder.PREFIX)


def _cluster_sizes(texts: list[str]) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in texts)
    except ValueError as error:
        raise UserError(
            f"--cluster_sizes={','.join(texts)}: whole numbers with commas, for example 3,6,6,6"
        ) from error


def main(arguments: list[str]) -> None:
    """Runs what the flags describe."""
    command_line.no_arguments(arguments)
    config = run_config(_DATASET.value)
    if _STOP_IF_UNSURE.value and config.algorithm != "rdpcfl":
        raise UserError("--stop_if_unsure: only --algorithm=rdpcfl finds clusters in round 1")
    execution = Execution(
        tuple(_WORKERS.value),
        _WORKER_RETRIES.value,
        _DEAD_WORKER.value,
        tuple(_CLIENT_DEVICES.value),
    )
    _check_runtime(execution)
    # TensorFlow takes seconds to import: wrong flags and missing data are told before it.
    config, store = _own_data(config) if _is_own(config.dataset) else _published_data(config)
    name = f"{config.algorithm}-{store.dataset}-{config.shift}-{time.strftime('%Y%m%d-%H%M%S')}"
    output_dir = pathlib.Path(_OUTPUT_DIR.value or pathlib.Path("results") / name)
    if _PRESET.value == "paper" and not _is_own(config.dataset):
        print("This is the paper's full run; --preset=quick takes minutes.")
    from rdpcfl_tff.federated import in_process
    from rdpcfl_tff.training import driver

    execution = in_process.with_devices(execution, _RUNTIME.value)
    try:
        summary = driver.run(
            config,
            store,
            output_dir,
            sys.argv,
            checkpoint_every=_CHECKPOINT_EVERY.value,
            stop_if_unsure=_STOP_IF_UNSURE.value,
            halt_after=_HALT_AFTER.value,
            execution=execution,
        )
    except WorkerError as error:
        raise WorkerError(
            f"{error}\nFinished rounds are saved: the same command with --output_dir={output_dir} "
            "goes on from there."
        ) from error
    if summary is None:
        print(
            f"halted: round {_HALT_AFTER.value} of {config.rounds} is reached; to go on: the same "
            f"command with --output_dir={output_dir}, without --halt_after"
        )
    elif summary.get("stopped"):
        _print_stopped(summary, config, output_dir)
    else:
        _print_summary(summary, output_dir)


def _check_runtime(execution: Execution) -> None:
    if _RUNTIME.value == "in_process" and execution.workers:
        raise UserError("--runtime=in_process and --workers: clients train here or there, not both")
    if _RUNTIME.value == "worker" and execution.client_devices:
        raise UserError("--client_devices: the worker has the CPU only; give --runtime=in_process")


def _published_data(config: configs.RunConfig) -> tuple[configs.RunConfig, SiloStore]:
    """The data set's silos, and the config of --fallback_dataset if they are its."""
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    try:
        dataset = sources.load(config.dataset, data_dir, _cache_dir())
    except sources.NoSourceError:
        if _FALLBACK.value is None:
            raise
        print(f"No source of {config.dataset} can be reached: running on {_FALLBACK.value}.")
        config = run_config(_FALLBACK.value)
        dataset = sources.load(config.dataset, data_dir, _cache_dir())
    return config, silos.store_of_run(config, dataset, _cache_dir())


def _own_data(config: configs.RunConfig) -> tuple[configs.RunConfig, SiloStore]:
    """The silos of --dataset=folder:PATH, and the config with what only they know."""
    for flag in ("shift", "cluster_sizes", "samples_per_client", "overlap"):
        if flags.FLAGS[flag].present:
            raise UserError(
                f"--{flag} is for published data sets: --dataset={config.dataset} has the records "
                "and the clients that are in the folder"
            )
    folder = pathlib.Path(config.dataset.removeprefix(own_folder.PREFIX))
    store = own_folder.open_folder(folder, config.seed, _cache_dir() / "silos")
    model = _OVERRIDES["model"].value or own_store.default_model(store.kind)
    return dataclasses.replace(config, model=model, data_sha256=store.sha256), store


def _cache_dir() -> pathlib.Path:
    return pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else cache.default_folder()


def _print_stopped(summary: dict, config: configs.RunConfig, output_dir: pathlib.Path) -> None:
    spent = "this run is NOT private"
    if summary["private"]:
        spent = (
            f"every client has spent epsilon {summary['epsilon_spent']:.3f} of {config.epsilon:g} "
            f"at delta {config.delta:g}, and a new run is paid for again"
        )
    print(
        f"stopped after round 1, because it leaves the clusters in doubt\n{spent}\n"
        f"to go on after all: the same command with --output_dir={output_dir}, without "
        f"--stop_if_unsure\nresults: {output_dir}"
    )


def _print_summary(summary: dict, output_dir: pathlib.Path) -> None:
    accuracy = summary["simulation_test_accuracy"]
    privacy = f"epsilon {summary['epsilon_spent']:.3f}" if summary["private"] else "NOT private"
    minority = wrong = ""
    if "simulation_partition" in summary:  # the true clusters are known
        misplaced = summary["simulation_partition"]["misplaced_clients"]
        minority = f", minority cluster {accuracy['minority']:.4f}"
        wrong = f"; clients in a wrong cluster: {misplaced}"
    collapsed = "; the clients have collapsed onto one model" if summary["collapsed"] else ""
    print(
        f"{summary['algorithm']} on {summary['dataset']}, {summary['rounds']} rounds, {privacy}\n"
        f"test accuracy: mean {accuracy['mean']:.4f}, worst client {accuracy['worst']:.4f}"
        f"{minority}\n"
        f"models: {summary['models_in_use']} of {summary['models']} in use{collapsed}{wrong}\n"
        f"results: {output_dir}"
    )


if __name__ == "__main__":
    command_line.run(main)
