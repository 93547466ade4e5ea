"""A script that `tfds_source` starts: reads one data set with TFDS and saves its arrays.

Data of the paper's experiments. It is a process of its own because TFDS retries a dead network
for minutes and loads TensorFlow; as a process it can be given a time limit.
"""

import hashlib
import sys

import numpy as np
import tensorflow_datasets as tfds


def published_order(split: str, size: int) -> np.ndarray:
    """For each published record its place in TFDS, which orders records by MD5(split, index)."""
    digests = [hashlib.md5(f"{split}{index}".encode()).digest() for index in range(size)]
    return np.argsort(np.argsort(np.array(digests, dtype="S16")))


def main(name: str, target: str, may_download: str) -> None:
    """Writes the four arrays, in the published order, to the .npz file `target`."""
    builder = tfds.builder(name)
    if may_download == "download":
        builder.download_and_prepare()
    arrays = {}
    # More than one reader would interleave the files of a split and lose the order.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    for split in ("train", "test"):
        whole = tfds.as_numpy(
            builder.as_dataset(split=split, batch_size=-1, read_config=read_config)
        )
        order = published_order(split, len(whole["label"]))
        arrays[f"{split}_images"] = whole["image"][order]
        arrays[f"{split}_labels"] = whole["label"][order].astype(np.uint8)
    np.savez(target, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
