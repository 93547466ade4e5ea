"""A folder of the user's with one file per client and a manifest (`--dataset=folder:PATH`).

Not part of the paper. The records are decoded once into a silo store, because a client reads raw
arrays in milliseconds every round and anything else in seconds; the folder itself is only read.
"""

import hashlib
import json
import logging
import tomllib
from pathlib import Path
from typing import Any

from rdpcfl_tff.data import client_files, own_store
from rdpcfl_tff.data.own_store import ClientSettings, Description
from rdpcfl_tff.data.store import Normalisation, SiloStore
from rdpcfl_tff.errors import UserError

PREFIX = "folder:"

_LOG = logging.getLogger(__name__)

_EXAMPLE = '{"image_shape": [28, 28, 1], "num_classes": 10}'
_FIELDS = ("image_shape", "feature_shape", "num_classes", "classes", "normalisation", "clients")


def open_folder(folder: Path, seed: int, stores: Path) -> SiloStore:
    """The silo store of the folder, kept below `stores`; the seed decides the splits."""
    manifest_path, manifest = _manifest(folder)
    description = _description(manifest_path, folder.resolve().name, manifest)
    files = {path.name: path for path in _client_files(folder)}
    settings = _settings(manifest_path, manifest, files)
    name = f"{description.dataset}-{_key(folder, manifest_path, seed)}"
    return own_store.build(
        description,
        settings,
        lambda client: client_files.read(files[client], description),
        seed,
        stores / name,
    )


def _manifest(folder: Path) -> tuple[Path, dict[str, Any]]:
    if not folder.is_dir():
        raise UserError(f"--dataset={PREFIX}{folder}: no such folder")
    found = [path for name in ("json", "toml") if (path := folder / f"manifest.{name}").exists()]
    if len(found) != 1:
        fault = "two manifests" if found else "no manifest.json or manifest.toml"
        raise UserError(f"{folder}: has {fault}; write one manifest.json such as {_EXAMPLE}")
    (path,) = found
    try:
        text = path.read_text()
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); an example: {_EXAMPLE}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be an object such as {_EXAMPLE}")
    unknown = [name for name in content if name not in _FIELDS]
    if unknown:
        raise UserError(f"{path}: unknown field {unknown[0]!r}; there are {', '.join(_FIELDS)}")
    return path, content


def _description(path: Path, dataset: str, manifest: dict[str, Any]) -> Description:
    kinds = [kind for kind in ("image", "feature") if f"{kind}_shape" in manifest]
    if len(kinds) != 1:
        raise UserError(
            f"{path}: must have either an image_shape (uint8 images) or a feature_shape (any "
            f"other numbers), such as {_EXAMPLE}"
        )
    shape, classes = manifest[f"{kinds[0]}_shape"], manifest.get("classes", [])
    if not isinstance(shape, list) or not isinstance(classes, list):
        raise UserError(f"{path}: {kinds[0]}_shape and classes must be lists")
    if len(set(map(str, classes))) != len(classes):
        raise UserError(f"{path}: classes has a name twice")
    num_classes = manifest.get("num_classes", len(classes))
    if classes and num_classes != len(classes):
        raise UserError(f"{path}: num_classes is {num_classes}, and classes has {len(classes)}")
    try:
        return Description(
            dataset,
            f"{kinds[0]}s",
            tuple(shape),
            num_classes,
            _normalisation(manifest.get("normalisation")),
            tuple(map(str, classes)),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _normalisation(given: Any) -> Normalisation | None:
    if given is None:
        return None
    try:
        normalisation = Normalisation(float(given["mean"]), float(given["std"]))
    except (TypeError, KeyError, ValueError):
        normalisation = None
    if normalisation is None or set(given) != {"mean", "std"} or not normalisation.std > 0:
        raise UserError(
            'normalisation must be two public numbers, such as {"mean": 0.5, "std": 0.25}, the '
            "second of them above 0"
        )
    return normalisation


def _client_files(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir())
    found = [path for path in entries if client_files.is_client(path)]
    if not found:
        raise UserError(
            f"{folder}: has no client; put one .npz, one .tfrecord or one folder of images per "
            "client beside the manifest"
        )
    ignored = [path.name for path in entries if path not in found and path.stem != "manifest"]
    if ignored:
        _LOG.info("%s: no client's records in %s", folder, ", ".join(ignored))
    return found


def _settings(
    path: Path, manifest: dict[str, Any], files: dict[str, Path]
) -> dict[str, ClientSettings]:
    """The settings of every client; a file that the manifest does not name has none."""
    given = manifest.get("clients", {})
    if not isinstance(given, dict):
        raise UserError(f'{path}: clients must be an object such as {{"north.npz": {{...}}}}')
    missing = sorted(set(given) - set(files))
    if missing:
        raise UserError(
            f"{path}: names the client {missing[0]!r}, and the folder has no such file; it has "
            f"{', '.join(files)}"
        )
    for name, values in given.items():
        if not isinstance(values, dict):
            raise UserError(f"{path}: client {name}: must be an object such as {{epsilon: 4}}")
    return {
        name: ClientSettings.checked(f"{path}: client {name}", given.get(name, {}))
        for name in files
    }


def _key(folder: Path, manifest_path: Path, seed: int) -> str:
    """Changes with the manifest, the seed, and the name, size or time of any file."""
    parts = [str(folder.resolve()), str(seed), manifest_path.read_text()]
    for path in sorted(folder.rglob("*")):
        state = path.stat()
        parts.append(f"{path.relative_to(folder)} {state.st_size} {state.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
