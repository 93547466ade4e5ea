"""One look for all figures, and how a figure is kept: PNG, PDF, and the table behind it as CSV.

Colours are Okabe and Ito's, which colour-blind readers can tell apart, with markers for print in
grey; ordered values have the ordered colours of cividis.
"""

import contextlib
import io
import logging
import pathlib
from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from rdpcfl_tff import storage
from rdpcfl_tff.training.pictures import COLOURS, MARKERS

# Each algorithm has its name in the paper, its colour, its marker and its line in every figure.
ALGORITHMS = {
    "rdpcfl": ("R-DPCFL", COLOURS[0], MARKERS[0], "-"),
    "ifca": ("IFCA", COLOURS[1], MARKERS[1], "-"),
    "mr_mtl": ("MR-MTL", COLOURS[2], MARKERS[2], "-"),
    "local": ("Local", COLOURS[3], MARKERS[3], "-"),
    "global": ("Global", COLOURS[4], MARKERS[4], "-"),
    "odpcfl": ("O-DPCFL (oracle)", COLOURS[7], MARKERS[7], "--"),
}

_LOOK = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.25,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # text stays text
}
# It tells every table of every font that goes into a PDF.
logging.getLogger("fontTools").setLevel(logging.WARNING)

# Without the date, the same data gives the same file.
_METADATA: dict[str, dict[str, str | None]] = {"png": {}, "pdf": {"CreationDate": None}}


@contextlib.contextmanager
def look() -> Iterator[None]:
    """Everything drawn or saved inside has the common look."""
    with matplotlib.rc_context(_LOOK):
        yield


def panels(
    columns: int, rows: int = 1, width: float = 3.4, height: float = 2.8, **shared: bool | str
) -> tuple[Figure, list[Axes]]:
    """A figure of `rows` times `columns` panels, in reading order."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, list(grid.flat)


def ordered_colours(number: int) -> list[tuple[float, ...]]:
    """Colours of values that have an order, dark for the smallest."""
    return [
        tuple(colour) for colour in matplotlib.colormaps["cividis"](np.linspace(0, 0.9, number))
    ]


def log_ticks(axes: Axes, which: str, values: pd.Series) -> None:
    """Makes the axis `which` ("x" or "y") logarithmic, with a tick at each of the few values."""
    ticks = sorted(set(values))
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks([], minor=True)
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])


def log_numbers(axes: Axes, which: str) -> None:
    """Makes the axis `which` logarithmic, with ticks at 1, 2, 5, 10, ..., written as numbers."""
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def save(figure: Figure, table: pd.DataFrame, stem: pathlib.Path) -> None:
    """Writes the figure as `stem`.png and `stem`.pdf, and its table as `stem`.csv."""
    with storage.explained(stem.parent, "choose another --output_dir"):
        stem.parent.mkdir(parents=True, exist_ok=True)
        for kind, metadata in _METADATA.items():
            image = io.BytesIO()
            figure.savefig(image, format=kind, dpi=150, metadata=metadata)
            storage.write_atomically(stem.with_suffix(f".{kind}"), [image.getvalue()])
        csv = table.to_csv(index=False, lineterminator="\n")
        storage.write_atomically(stem.with_suffix(".csv"), [csv.encode()])
