"""Writes a folder of eleven clients to try `--dataset=folder:PATH` with.

`python -m experiments.example_folder PATH`: scikit-learn's digits, in clusters of 2, 5 and 4
clients of unequal sizes. A cluster's images are turned by a quarter more than the cluster's before.
"""

import json
import pathlib

import numpy as np

from experiments import command_line
from rdpcfl_tff.data import shifts, sources
from rdpcfl_tff.errors import UserError

# Records per client, for each of the clusters; every cluster has the 1,797 digits for itself.
CLUSTERS = ((520, 430), (420, 390, 360, 330, 290), (500, 460, 430, 400))
_QUARTERS = 4


def write(folder: pathlib.Path, seed: int = 0) -> None:
    """Writes one npz per client, and the manifest."""
    digits = sources.load("digits")
    images = np.concatenate([digits.train_images, digits.test_images])
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    folder.mkdir(parents=True)
    clients: dict[str, dict[str, object]] = {}
    for cluster, sizes in enumerate(CLUSTERS):
        order = np.random.RandomState([seed, cluster]).permutation(len(labels))
        for chosen in np.split(order, np.cumsum(sizes))[: len(sizes)]:
            name = f"hospital_{len(clients):02d}.npz"
            turned = shifts.rotate(images[chosen], cluster, _QUARTERS)
            np.savez_compressed(folder / name, x=turned, y=labels[chosen])
            clients[name] = {"true_cluster": cluster}
    manifest = {
        "image_shape": list(digits.image_shape),
        "num_classes": digits.num_classes,
        "clients": clients,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def main(arguments: list[str]) -> None:
    """Writes the folder that the argument names."""
    if len(arguments) != 1:
        raise UserError("name one new folder: `python -m experiments.example_folder example_silos`")
    folder = pathlib.Path(arguments[0])
    if folder.exists():
        raise UserError(f"{folder} is there already: name a new folder")
    write(folder)
    print(
        f"{folder} has {sum(map(len, CLUSTERS))} clients. Train on them:\n"
        f"python -m experiments.main --dataset=folder:{folder} --eps=8 --delta=1e-3"
    )


if __name__ == "__main__":
    command_line.run(main)
