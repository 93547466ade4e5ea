"""Folders of clients for the tests of commands: the embedded digits, in two clusters."""

import json
import pathlib

import numpy as np

from rdpcfl_tff.data import shifts, sources

SIZES = {"a.npz": 70, "b.npz": 90, "c.npz": 80, "d.npz": 100}
TRUE_CLUSTERS = {"a.npz": 0, "b.npz": 0, "c.npz": 1, "d.npz": 1}


def write(folder: pathlib.Path, clients: dict[str, dict[str, object]]) -> None:
    """Clients with splits of their own, so that a test knows which records are for the test."""
    folder.mkdir(parents=True)
    digits = sources.load("digits")
    end = 0
    for name, size in SIZES.items():
        start, end = end, end + size
        x = shifts.rotate(digits.train_images[start:end], TRUE_CLUSTERS[name], 2)
        y = digits.train_labels[start:end]
        borders = [size * 7 // 10, size * 8 // 10]
        arrays = {}
        for split, part in zip(
            ("train", "validation", "test"), np.split(np.arange(size), borders), strict=True
        ):
            arrays |= {f"x_{split}": x[part], f"y_{split}": y[part]}
        np.savez(folder / name, **arrays)
    manifest = {"image_shape": [28, 28, 1], "num_classes": 10, "clients": clients}
    (folder / "manifest.json").write_text(json.dumps(manifest))
