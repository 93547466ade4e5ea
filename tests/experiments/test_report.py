"""The report shows what the files say, stands alone, and fits a phone."""

import html.parser
import json
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from experiments import sweep_folder, sweep_results
from experiments.reporting import page, run, sweep

VOID = {"meta", "img"}
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
NAME = "rdpcfl-digits-label_flip-eps8-seed0"


class Parser(html.parser.HTMLParser):
    """Checks that every element is closed; collects tables, lists of facts, and addresses."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.addresses: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.facts: list[tuple[str, str]] = []
        self.words = ""
        self._cells: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self._cells.append([])
        if tag in ("td", "th", "caption", "dt", "dd"):
            self.words = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self._cells[-1].append(self.words)
        elif tag == "caption":
            self._cells, self._caption = [], self.words
        elif tag == "table":
            self.tables.setdefault(self._caption, self._cells)
        elif tag == "dt":
            self._name = self.words
        elif tag == "dd":
            self.facts.append((self._name, self.words))

    def handle_data(self, data):
        self.words += data


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    subprocess.run(
        [
            *(sys.executable, "-m", "experiments.main", "--dataset=digits", "--preset=smoke"),
            *("--cluster_sizes=2,3", "--num_clusters=2", "--shift=label_flip", "--eps=8"),
            *("--delta=1e-3", f"--cache_dir={folder}", f"--output_dir={folder / NAME}"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / NAME


@pytest.fixture(scope="module")
def sweep_of_two(run_folder, tmp_path_factory):
    """The run, the same again as seed 1 with another accuracy, and one that has failed."""
    folder = tmp_path_factory.mktemp("sweep_report")
    names = [NAME, NAME.replace("seed0", "seed1"), "local-digits-label_flip-eps8-seed0"]
    for name in names[:2]:
        shutil.copytree(run_folder, sweep_folder.run_folder(folder, name))
    directory = sweep_folder.run_folder(folder, names[1])
    for file, change in (
        ("config.json", lambda content: content["config"].update(seed=1)),
        ("summary.json", lambda content: content["simulation_test_accuracy"].update(mean=0.5)),
    ):
        content = json.loads((directory / file).read_text())
        change(content)
        (directory / file).write_text(json.dumps(content))
    (folder / "logs").mkdir()
    sweep_folder.log_path(folder, names[2]).write_text("error: no <space> left\n")
    plan = {"command": ["sweep", "my sweep.toml"], "runs": [{"name": name} for name in names]}
    (folder / "sweep.json").write_text(json.dumps(plan))
    sweep_results.collect(folder)
    return folder


def test_the_page_of_a_run_shows_its_files(run_folder):
    shown = Parser(run.report(run_folder))
    summary = json.loads((run_folder / "summary.json").read_text())
    for name, value in summary["simulation_test_accuracy"].items():
        assert (f"test accuracy, {name}", f"{value:.4f}") in shown.facts
    assert ("epsilon spent", f"{summary['epsilon_spent']:.3f}") in shown.facts
    assert sweep_results.run_hash(run_folder) in run.report(run_folder)

    config = json.loads((run_folder / "config.json").read_text())["config"]
    for name, value in config.items():
        assert (name, json.dumps(value)) in shown.facts

    clients = pd.read_csv(run_folder / "simulation_clients.csv")
    header, *rows = shown.tables["Every client at the end of the run"]
    assert [row[header.index("client")] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row[header.index("test accuracy")] for row in rows] == [
        f"{value:.4f}" for value in clients["test_accuracy"]
    ]
    assert [int(row[header.index("true cluster")]) for row in rows] == [0, 0, 1, 1, 1]

    measured = pd.read_csv(run_folder / "simulation_metrics.csv")
    header, *rows = shown.tables["Accuracy on the validation records"]
    assert [row[header.index("mean")] for row in rows] == [f"{v:.4f}" for v in measured["mean"]]


def test_the_page_of_a_run_has_its_privacy_statement(run_folder):
    written = re.sub(r"\s+", " ", (run_folder / "privacy.txt").read_text())
    facts = dict(reversed(Parser(run.report(run_folder)).facts))  # the first of each name
    for name in ("adjacency", "epsilon", "sampler", "noise source", "public"):
        assert facts[name] in written
    assert "(8.000, 0.001)-differentially private" in run.report(run_folder)


def test_the_page_of_a_sweep_shows_mean_and_spread(sweep_of_two):
    shown = Parser(sweep.report(sweep_of_two))
    runs = sweep_results.load(sweep_of_two)
    mean, deviation = runs["test_accuracy_mean"].mean(), runs["test_accuracy_mean"].std()
    assert deviation > 0
    header, row = shown.tables["Test accuracy, mean of all clients"]
    assert header[1:] == ["epsilon 8"]
    assert row == ["R-DPCFL", f"{mean:.3f} ± {deviation:.3f}"]
    _, *rows = shown.tables["Test accuracy of every run"]
    assert [row[-1] for row in rows] == [value[:12] for value in runs["hash"]]
    assert [row[1] for row in rows] == [f"{value:.4f}" for value in runs["test_accuracy_mean"]]


def test_the_page_of_a_sweep_says_what_is_missing(sweep_of_two):
    text = sweep.report(sweep_of_two)
    assert "2 finished runs; of the 3 that were asked for last, 2 are finished." in text
    assert "local-digits-label_flip-eps8-seed0: not one round is saved" in text
    assert "error: no &lt;space&gt; left" in text
    assert "draws them" in text, "figures on round 1 were not drawn"
    assert "Figures 4 and 10" in text, "figures from the runs are"


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_the_file_stands_alone(kind, run_folder, sweep_of_two):
    shown = Parser(run.report(run_folder) if kind == "run" else sweep.report(sweep_of_two))
    assert shown.elements.count("h1") == 1 and shown.elements.count("img") >= 1
    assert not {"script", "link", "iframe"} & set(shown.elements)
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in shown.addresses)


def test_a_model_that_changes_is_told_by_rounds():
    assert run._spans([1, 2, 3, 4], [0, 2, 2, 1]) == "0 (1), 2 (2-3), 1 (4)"


def test_text_is_escaped():
    content = page.page(
        "<b>", "<b>", [("<b>", page.table("<b>", ["<b>", "<b>"], [["<b>", "<b>"]]))]
    )
    assert "<b>" not in content and "<td>&lt;b&gt;</td>" in content


def test_the_command_writes_the_file(run_folder):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.report", str(run_folder)],
        capture_output=True,
        text=True,
    )
    path = run_folder / "simulation_report.html"
    assert done.returncode == 0 and done.stdout.strip() == str(path), done.stderr
    assert path.read_text() == run.report(run_folder)


def test_a_folder_without_results_is_told_in_one_line(tmp_path):
    for arguments in ([str(tmp_path)], []):
        done = subprocess.run(
            [sys.executable, "-m", "experiments.report", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 1 and done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_it_fits_the_screen_of_a_real_browser(kind, width, run_folder, sweep_of_two, tmp_path):
    """The page inside a frame of the given width; a script around it looks at what came out."""
    content = run.report(run_folder) if kind == "run" else sweep.report(sweep_of_two)
    (tmp_path / "report.html").write_text(content)
    (tmp_path / "frame.html").write_text(
        f"""<iframe src="report.html" width="{width}" height="800" style="border:0"
        onload="const seen = this.contentDocument, root = seen.documentElement;
        document.title = [root.scrollWidth - root.clientWidth,
        [...seen.images].every((image) => image.naturalWidth > 0)].join(' ')"></iframe>"""
    )
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu"),
            *("--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--window-size=1400,900", "--dump-dom"),
            (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    title = re.search(r"<title>(.*)</title>", done.stdout)
    assert title, done.stderr
    assert title.group(1) == "0 true", "nothing is wider than the screen, every picture is there"
