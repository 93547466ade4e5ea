"""Every figure of the paper and ours, rendered from digits and a stored sweep; their tables."""

import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from experiments import sweep_results
from experiments.first_updates import FirstRound
from experiments.plots import catalogue, noise
from rdpcfl_tff.clustering import count, mixture
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.privacy import accounting, update_variance

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN_SWEEP = ROOT / "tests" / "golden" / "sweep"
SMALL_SAMPLES = 125
EPSILONS = (3.0, 1000.0)


def run_figures(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "experiments.figures", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    shutil.copytree(GOLDEN_SWEEP, folder)
    sweep_results.collect(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory, sweep):
    """The folder of all figures, and what the command printed."""
    folder = tmp_path_factory.mktemp("figures")
    done = run_figures(
        *("--figure=all", "--dataset=digits", "--seeds=1", "--noise_seeds=2", "--eps=3,1000"),
        *(f"--sweep={sweep}", f"--cache_dir={folder}/cache", f"--output_dir={folder}/figures"),
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def table(made):
    folder, _ = made
    return lambda name: pd.read_csv(
        folder / "figures" / f"{catalogue.FIGURES[name].stem}.csv", dtype={"round": str}
    )


@pytest.fixture(scope="module")
def small_round(made):
    """The small silos that the figures were made of."""
    folder, _ = made
    config = RunConfig(
        algorithm="rdpcfl",
        dataset="digits",
        rounds=20,
        learning_rate=0.05,
        samples_per_client=SMALL_SAMPLES,
    )
    store = SiloStore.open(
        folder / "cache" / "silos" / f"digits-rotation-3_6_6_6-{SMALL_SAMPLES}-seed0"
    )
    return FirstRound(config, store, folder / "cache" / "first_round")


def test_every_figure_is_written_as_png_pdf_and_csv(made):
    folder, printed = made
    assert "not made" not in printed
    files = {path.name for path in (folder / "figures").iterdir()}
    assert files == {
        f"{figure.stem}.{kind}"
        for figure in catalogue.FIGURES.values()
        for kind in ("png", "pdf", "csv")
    }
    for figure in catalogue.FIGURES.values():
        stem = folder / "figures" / figure.stem
        assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        image = matplotlib.image.imread(stem.with_suffix(".png"))
        assert image[..., :3].std() > 0.05, "something is drawn"


def test_every_data_figure_of_the_paper_has_its_command():
    numbers = itertools.chain.from_iterable(
        re.findall(r"\d+", figure.paper) for figure in catalogue.FIGURES.values()
    )
    # Figure 1 is a sketch.
    assert {int(number) for number in numbers} == set(range(2, 16))


def test_the_documentation_has_every_figure():
    text = (ROOT / "docs" / "figures.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    assert {name: (paper, shows.split(" ([")[0]) for name, paper, shows in rows} == {
        figure.name: (figure.paper, figure.shows) for figure in catalogue.FIGURES.values()
    }


def test_only_figures_without_data_have_no_simulation_in_their_name():
    for figure in catalogue.FIGURES.values():
        assert figure.stem.startswith("simulation_") == (
            figure.source is not catalogue.Source.FORMULAS
        )


def test_noise_scale(table):
    rows = table("noise_scale")
    assert len(rows) == len(noise.FIRST_BATCHES) * len(noise.LATER_BATCHES)
    for row in rows.iloc[[0, -1]].itertuples():
        schedule = accounting.Schedule(6600, 200, int(row.batch_size), int(row.first_batch_size))
        assert accounting.epsilon_spent(schedule, row.noise_multiplier, 1e-4) == pytest.approx(
            5.0, rel=1e-3
        )
    by_later = rows.pivot(
        index="batch_size", columns="first_batch_size", values="noise_multiplier"
    ).to_numpy()
    assert (np.diff(by_later, axis=0) > 0).all() and (np.diff(by_later, axis=1) > 0).all()


def test_update_variance(table):
    rows = table("update_variance")
    batch = rows["first_batch_size"].where(rows["round"] == "1", rows["batch_size"])
    z = rows["noise_multiplier"]
    expected = 6600 * 5e-4**2 * 11_181_642 * (3 * z) ** 2 / batch**3
    np.testing.assert_allclose(rows["variance"], expected, rtol=1e-9)


def test_noise_ratio(table):
    rows = table("noise_ratio")
    assert set(rows["epsilon"]) == {3, 4, 5, 10, 15} and rows["batch_size"].nunique() == 7
    full, small = rows["full_batch_noise_multiplier"], rows["small_batch_noise_multiplier"]
    np.testing.assert_allclose(rows["ratio"], full / small)
    # The paper's rho, "a small constant (e.g. 2.5)".
    assert rows["ratio"].between(1, 2.5).all()
    by_epsilon = rows.pivot(index="epsilon", columns="batch_size", values="ratio").to_numpy()
    assert (np.diff(by_epsilon, axis=0) < 0).all()


def test_joint_accounting(table):
    rows = table("joint_accounting").set_index("epsilon")
    np.testing.assert_allclose(rows.loc[[3, 5, 15], "joint"], [1.911, 1.298, 0.713], atol=1e-3)
    # What the authors' code arrives at for this setting.
    np.testing.assert_allclose(rows.loc[[3, 5, 15], "authors"], [2.91, 1.85, 0.86], atol=6e-3)
    assert (rows["joint"] < rows["split"]).all() and (rows["split"] < rows["authors"]).all()


def test_losses_and_gradients(table):
    rows = table("losses_and_gradients")
    initial = rows[rows["time"] == "initial"].pivot(index="client", columns="model", values="loss")
    # The paper says that all four choose model 2, but f_1(-11) = 100 and f_1(0) = 144.
    assert initial.idxmin(axis=1).to_dict() == {1: 1, 2: 2, 3: 2, 4: 2}
    at_zero = rows[(rows["time"] == "initial") & (rows["model"] == 2)]
    assert at_zero["gradient"].tolist() == [48, 40, -40, -48]
    trained = rows[rows["time"] == "trained"]
    own = trained[trained["model"] == trained["cluster"]].set_index("client")
    assert own["gradient"].to_dict() == {1: 12, 2: 4, 3: 4, 4: -4}
    assert trained[trained["client"] == 1].set_index("model")["loss"].to_dict() == {1: 9, 2: 23**2}


def test_updates_pca(table):
    rows = table("updates_pca")
    full = rows["first_batch_size"].max()
    assert set(rows["first_batch_size"]) == {32, full}
    for _, panel in rows.groupby("first_batch_size"):
        assert panel["kind"].value_counts().to_dict() == {"client": 21, "centre": 4}
        assert panel[panel["kind"] == "client"]["cluster"].value_counts().tolist() == [6, 6, 6, 3]
    clients = rows[rows["kind"] == "client"]
    for axis in ("x", "y"):
        ends = clients.groupby("first_batch_size")[axis].agg(["min", "max"]).to_numpy()
        np.testing.assert_allclose(ends, [[0, 1], [0, 1]], atol=1e-12)


def test_later_batch_pca(table, small_round):
    rows = table("later_batch_pca")
    settings = rows.groupby("batch_size").first()
    assert list(settings.index) == [8, 16, 32, 64]
    assert settings["noise_multiplier"].is_monotonic_increasing
    updates = small_round.updates(small_round.plan(10.0, batch_size=16), draw=0)
    fitted = mixture.paper_mixture(mixture.principal_components(updates), 4, seed=0)
    panel = rows[rows["batch_size"] == 16]
    assert panel["mss"].iloc[0] == pytest.approx(fitted.mss)
    points = panel[panel["kind"] == "client"][["x", "y"]]
    np.testing.assert_allclose(points, fitted.coordinates, atol=1e-9)


def test_mss_epsilon_and_detection_show_the_same_experiments(table):
    rows = table("mss_epsilon")
    pd.testing.assert_frame_equal(rows, table("mss_detection"))
    sizes = rows.groupby(["records", "batch_size"]).size()
    # Epsilons, draws and mixtures, for large silos and for small ones with two batch sizes.
    assert len(sizes) == 3 and set(sizes) == {2 * 2 * 2}
    large = rows[rows["records"] == rows["records"].max()]
    found = large[large["mixture"] == "default"].groupby("epsilon")["exact"].all()
    assert found.to_dict() == {3.0: False, 1000.0: True}
    assert large.groupby("epsilon")["mss"].median().is_monotonic_increasing


def test_mss_candidates(table, small_round):
    rows = table("mss_candidates")
    assert len(rows) == len(EPSILONS) * 2 * 7
    components = mixture.principal_components(small_round.updates(small_round.plan(1000.0), draw=0))
    clear = rows[(rows["epsilon"] == 1000) & (rows["mixture"] == "default")]
    expected = [mixture.default_mixture(components, number).mss for number in range(2, 9)]
    np.testing.assert_allclose(clear["mss"], expected, rtol=1e-9)


def test_mss_null(table):
    rows = table("mss_null")
    null = rows[rows["kind"] == "no clusters"]["ratio"]
    scores = count.null_mss(21, tuple(range(2, 9)), 0)
    unusual = np.sort(scores, axis=0)[188] * 0.9 + np.sort(scores, axis=0)[189] * 0.1
    np.testing.assert_allclose(null, (scores / unusual).max(axis=1), rtol=1e-9)
    observed = rows[rows["kind"] == "four clusters"]
    assert observed.groupby("epsilon").size().to_dict() == {3.0: 2, 1000.0: 2}
    reached = [(null >= ratio).sum() for ratio in observed["ratio"]]
    np.testing.assert_allclose(observed["p_value"], (np.array(reached) + 1) / 200)


def test_em_iterations(table, small_round):
    rows = table("em_iterations")
    assert set(rows["first_batch_size"]) == {16, 32, 64, 100}
    assert len(rows) == 4 * 2 * 2
    updates = small_round.updates(small_round.plan(15.0, first_batch_size=16), draw=1)
    components = mixture.principal_components(updates)
    row = rows[(rows["first_batch_size"] == 16) & (rows["draw"] == 1)].set_index("mixture")
    for name, fitted in (
        ("paper", mixture.paper_mixture(components, 4, seed=0)),
        ("default", mixture.default_mixture(components, 4)),
    ):
        assert row.loc[name, "em_iterations"] == fitted.em_iterations
        assert row.loc[name, "mss"] == pytest.approx(fitted.mss)


def test_centre_distance(table):
    rows = table("centre_distance")
    assert rows["clusters"].nunique() == 6
    assert rows["slope"].between(-1.3, -0.7).all()
    # One full-batch step and seven steps of 16: the centres are that much closer.
    distance = rows.groupby("first_batch_size")["distance"].mean()
    assert distance[16] / distance[100] == pytest.approx(7, rel=0.4)


def test_the_first_lemma_holds_for_real_updates(table, small_round):
    rows = table("variance_check")
    assert set(rows["round"]) == {"1", ">1"}
    np.testing.assert_allclose(rows["measured_over_lemma"], rows["measured"] / rows["lemma"])
    row = rows[(rows["round"] == ">1") & (rows["b"] == 8)].iloc[0]
    local = update_variance.LocalRound(
        records=100,
        batch_size=8,
        local_epochs=1,
        learning_rate=0.05,
        num_parameters=small_round.num_parameters,
        clip_norm=1.0,
        noise_multiplier=row["noise_multiplier"],
    )
    expected = update_variance.noise_variance(local)
    assert row["lemma"] == pytest.approx(expected, rel=1e-6)
    assert rows["measured_over_unsimplified"].between(0.8, 1.25).all()


def test_the_second_lemma_beside_real_updates(table):
    rows = table("overlap_check")
    assert len(rows) == 2 * 4
    np.testing.assert_allclose(
        rows["measured_over_lemma"], rows["measured_score"] / rows["lemma_score"]
    )
    # The same centres at both budgets, so that only the noise differs.
    little, much = (rows[rows["epsilon"] == epsilon].reset_index() for epsilon in (15.0, 0.5))
    np.testing.assert_allclose(
        little["lemma_score"] / much["lemma_score"],
        much["noise_multiplier"] / little["noise_multiplier"],
    )
    assert rows["measured_over_lemma"].between(0.3, 2).all()
    assert (rows[["lemma_overlap", "measured_overlap"]].to_numpy() <= 1.5).all()
    draws = table("em_iterations")
    draws = draws[(draws["mixture"] == "paper") & (draws["first_batch_size"] == 16)]
    fitted = rows.set_index(["epsilon", "first_batch_size"]).loc[(15.0, 16), "fitted_mss"]
    assert fitted == pytest.approx(draws["mss"].mean())


def stored_runs() -> list[tuple[dict, dict]]:
    return [
        tuple(
            json.loads((path.parent / name).read_text()) for name in ("config.json", "summary.json")
        )
        for path in sorted((GOLDEN_SWEEP / "runs").glob("*/summary.json"))
    ]


@pytest.mark.parametrize(
    ("name", "accuracy", "found"),
    [("accuracy", "mean", "exact"), ("minority_accuracy", "minority", "minority_found")],
)
def test_accuracy_is_that_of_the_stored_runs(table, name, accuracy, found):
    rows = table(name).set_index(["algorithm", "epsilon"])
    assert len(rows) == 12
    for algorithm in ("rdpcfl", "ifca", "odpcfl"):
        runs = [
            summary
            for content, summary in stored_runs()
            if (content["config"]["algorithm"], content["config"]["epsilon"]) == (algorithm, 1000)
        ]
        values = [run["simulation_test_accuracy"][accuracy] for run in runs]
        row = rows.loc[(algorithm, 1000.0)]
        assert row["runs"] == len(runs) == (2 if algorithm == "rdpcfl" else 1)
        assert row["accuracy"] == pytest.approx(np.mean(values))
        assert row["found"] == sum(run["simulation_partition"][found] for run in runs)
        if len(runs) > 1:
            assert row["deviation"] == pytest.approx(np.std(values, ddof=1))


@pytest.mark.parametrize(
    ("name", "found"),
    [("accuracy", "the true clusters"), ("minority_accuracy", "the minority cluster")],
)
def test_accuracy_says_what_was_found(table, name, found):
    figure = catalogue.FIGURES[name].draw(table(name))
    labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]
    assert labels == ["test accuracy", f"runs that found {found}"]


def test_accuracy_rounds(table, sweep):
    rows = table("accuracy_rounds")
    runs = sweep_results.load(sweep)
    assert len(rows) == 8 * len(runs)
    run = runs[(runs["algorithm"] == "rdpcfl") & (runs["seed"] == 1)].iloc[0]
    written = pd.read_csv(sweep / run["run_folder"] / "simulation_metrics.csv")
    stages = pd.read_csv(sweep / run["run_folder"] / "metrics.csv")["stage"]
    mine = rows[
        (rows["algorithm"] == "rdpcfl") & (rows["seed"] == 1) & (rows["epsilon"] == run["epsilon"])
    ]
    np.testing.assert_allclose(mine["mean"], written["mean"])
    assert mine["stage"].tolist() == stages.tolist()
    assert mine["stage"].nunique() > 2


def test_there_are_no_half_rounds(sweep):
    figure = catalogue.FIGURES["accuracy_rounds"]
    rows = figure.table(sweep)
    for axes in figure.draw(rows[rows["round"] <= 2]).axes:
        assert all(tick == round(tick) for tick in axes.get_xticks())


def test_the_list_names_every_figure():
    done = run_figures("--figure=list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(catalogue.FIGURES)


TWO_FIGURES = """
import sys
from experiments.plots import catalogue
catalogue.FIGURES = {n: catalogue.FIGURES[n] for n in ("accuracy", "losses_and_gradients")}
from experiments import command_line, figures
command_line.run(figures.main)
"""


def test_all_goes_on_without_what_is_missing_and_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TWO_FIGURES, "--figure=all", f"--output_dir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("not made: accuracy: ")
    assert "--sweep" in done.stdout
    assert (tmp_path / "losses_and_gradients.pdf").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure=accuracy"], "--figure=accuracy"),
        (["--figure=accuracy"], "--sweep=FOLDER"),
        (["--figure=accuracy", "--sweep=no/such/folder"], "no/such/folder"),
        (["--figure=picasso"], "--figure=picasso"),
        (["--figure=all", "--eps=x"], "--eps=x"),
        (["--figure=all", "--noise_seeds=1"], "--noise_seeds=1"),
        (["--figure=all", "results"], "results"),
    ],
    ids=str,
)
def test_bad_input_is_told_in_one_line(tmp_path, arguments, message):
    done = run_figures(*arguments, f"--output_dir={tmp_path}/figures")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and message in last
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "figures").exists()
