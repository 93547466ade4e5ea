"""What a data set is, and the only contents accepted for the three published ones.

Section "Datasets" of the paper's experiments: MNIST, Fashion-MNIST and CIFAR-10.
Public research data stands in for the clients' private records; nothing here is noised.
"""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class BadData(Exception):  # noqa: N818 - the caller decides whether it is an error
    """Bytes that are not the data they should be; the message names where they came from."""


class Arrays(NamedTuple):
    """The four uint8 arrays of a data set: images [N, H, W, C] and labels [N]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


@dataclass(frozen=True, eq=False)
class Dataset:
    """A verified data set; `source` says in one line where it came from."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    source: str

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        height, width, channels = self.train_images.shape[1:]
        return height, width, channels

    @property
    def sha256(self) -> str:
        """One digest of all four arrays: the same data has it, whatever its source."""
        parts = (self.train_images, self.train_labels, self.test_images, self.test_labels)
        return hashlib.sha256("".join(sha256(part) for part in parts).encode()).hexdigest()


@dataclass(frozen=True)
class PublishedSet:
    """The shape of a published set, and the SHA-256 of its decoded uint8 arrays (C order)."""

    name: str
    image_shape: tuple[int, int, int]
    train_size: int
    test_size: int
    digests: tuple[str, str, str, str]
    num_classes: int = 10

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the four arrays, in the order of `Arrays`."""
        return (
            (self.train_size, *self.image_shape),
            (self.train_size,),
            (self.test_size, *self.image_shape),
            (self.test_size,),
        )

    def check(self, arrays: Arrays, origins: tuple[str, str, str, str]) -> None:
        """Raises `BadData`, naming the origin of the first array that is not the published one."""
        for part, array, shape, digest, origin in zip(
            Arrays._fields, arrays, self.shapes(), self.digests, origins, strict=True
        ):
            if array.shape != shape:
                raise BadData(f"{origin}: {part} has shape {array.shape}, {self.name} has {shape}")
            found = sha256(array)
            if found != digest:
                known = _KNOWN_DIGESTS.get(found)
                hint = f"; it holds {known}" if known else ""
                raise BadData(
                    f"{origin}: wrong contents, not the published {part} of {self.name}{hint} "
                    f"(SHA-256 of the decoded array is {found}, expected {digest})"
                )

    def dataset(self, arrays: Arrays, source: str) -> Dataset:
        """The data set of already checked arrays."""
        return Dataset(self.name, *arrays, num_classes=self.num_classes, source=source)


def sha256(array: np.ndarray) -> str:
    """The SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


PUBLISHED = {
    published.name: published
    for published in (
        PublishedSet(
            name="mnist",
            image_shape=(28, 28, 1),
            train_size=60_000,
            test_size=10_000,
            digests=(
                "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            ),
        ),
        PublishedSet(
            name="fashion_mnist",
            image_shape=(28, 28, 1),
            train_size=60_000,
            test_size=10_000,
            digests=(
                "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            ),
        ),
        PublishedSet(
            name="cifar10",
            image_shape=(32, 32, 3),
            train_size=50_000,
            test_size=10_000,
            digests=(
                "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
                "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
                "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            ),
        ),
    )
}

_KNOWN_DIGESTS = {
    digest: f"the {part} of {published.name}"
    for published in PUBLISHED.values()
    for part, digest in zip(Arrays._fields, published.digests, strict=True)
}
