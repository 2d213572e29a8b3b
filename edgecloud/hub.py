"""Pulling models from a hub: which files a spec means, and getting them whole.

huggingface_hub knows the API, the endpoint (`HF_ENDPOINT`) and the token (`HF_TOKEN`). The bytes are fetched
here, since its own downloads start over when a process ends: a file grows under `.partial/`, named after its
content, is taken up again where it stopped, and gets its name only once its checksum is right.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from edgecloud import gguf
from edgecloud.errors import (
    BadRequest,
    EdgeCloudError,
    ModelLoadError,
    NoPermittedRoute,
    NotFound,
    StorageError,
    Unauthorized,
    UpstreamError,
)

# Receives the bytes so far, the bytes in all, and the file's name.
Progress = Callable[[int, int, str], None]

RETRIES = 5
RETRY_S = 1.0
TIMEOUT_S = 30.0
CHUNK = 1 << 20
PREFERRED = "Q4_K_M"

_SPEC = re.compile(r"hf:(?P<owner>[\w.-]+)/(?P<repo>[\w.-]+)(?::(?P<quant>[\w./-]+))?", re.ASCII)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q\d|TQ\d)\w*|BF16|F16|F32|MXFP4\w*)(?=$|[-.])", re.IGNORECASE)


class HubSpec(NamedTuple):
    """`hf:owner/repo:QUANT`, where `quant` may also be a file's name."""

    owner: str
    repo: str
    quant: str | None

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repo}"

    def matches(self, filename: str) -> bool:
        """Whether a file is of the quantisation asked for, if one was."""
        if self.quant is None:
            return True
        asked = self.quant.upper()
        return asked in (quant_label(filename), filename.upper(), PurePosixPath(filename).name.upper())

    def __str__(self) -> str:
        return f"hf:{self.repo_id}" + (f":{self.quant}" if self.quant else "")


class HubFile(NamedTuple):
    """One file of a repository; `sha256` is None for the small ones that git keeps itself."""

    path: str
    size: int
    sha256: str | None
    git_oid: str


def parse_spec(text: str) -> HubSpec:
    """Raises `BadRequest` for what isn't `hf:owner/repo` or `hf:owner/repo:QUANT`."""
    found = _SPEC.fullmatch(text)
    if found is None or ".." in text:
        raise BadRequest(
            f"{text[:80]!r} is not a model on the hub: write hf:owner/repo:QUANT.", param="model"
        )
    return HubSpec(found["owner"], found["repo"], found["quant"])


def quant_label(filename: str) -> str | None:
    """`Q4_K_M` from `Qwen2.5-0.5B-Instruct-Q4_K_M.gguf`, upper case; None where the name has none."""
    found = _QUANT.findall(_SHARD.sub("", PurePosixPath(filename).stem))
    return found[-1].upper() if found else None


def is_model(filename: str) -> bool:
    """Whether a file is (a shard of) a language model: projectors and importance matrices are GGUF too."""
    name = PurePosixPath(filename).name.lower()
    return name.endswith(".gguf") and "mmproj" not in name and "imatrix" not in name


def choose(files: Sequence[HubFile], spec: HubSpec) -> list[HubFile]:
    """The files of the one model that a spec means, all its shards in order.

    Without a quantisation: Q4_K_M if there is one, else the only model. Raises `BadRequest` or `NotFound`
    with the choices.
    """
    groups: dict[str, list[HubFile]] = {}
    for file in sorted(files):
        if is_model(file.path):
            groups.setdefault(_SHARD.sub("", file.path.removesuffix(".gguf")) + ".gguf", []).append(file)
    if not groups:
        raise NotFound(f"{spec.repo_id} has no GGUF files: look for a repository with -GGUF in its name.")
    found = [name for name in groups if spec.matches(name) or spec.matches(groups[name][0].path)]
    if spec.quant is None and len(found) > 1:
        found = [name for name in groups if quant_label(name) == PREFERRED] or found
    if len(found) != 1:
        labels = sorted(_labels(groups, spec, found or list(groups)))
        if not found:
            raise NotFound(f"{spec.repo_id} has no {spec.quant}: it has {', '.join(labels)}.", param="model")
        raise BadRequest(f"{spec} could be any of {', '.join(labels)}: name one.", param="model")
    shards = groups[found[0]]
    counted = _SHARD.search(shards[0].path.removesuffix(".gguf"))
    if counted is not None and int(counted[2]) != len(shards):
        raise NotFound(
            f"{spec} is incomplete on the hub: {len(shards)} of {int(counted[2])} shards are there."
        )
    return shards


def _labels(groups: dict[str, list[HubFile]], spec: HubSpec, names: list[str]) -> list[str]:
    """How to ask for each of these models: by quantisation where that is enough, else by file."""
    every = [quant_label(name) for name in groups]
    labels = []
    for name in names:
        label = quant_label(name)
        labels.append(str(spec._replace(quant=label if label and every.count(label) == 1 else name)))
    return labels


def pull(spec: HubSpec, folder: Path, progress: Progress | None = None) -> Path:
    """Fetch a model into `folder/owner/repo/` and return its (first) file.

    What an interrupted pull got is kept and continued by the next. Raises an `EdgeCloudError` for each thing
    that can go wrong; nothing incomplete or unchecked ever has the final name.
    """
    files = choose(_listing(spec), spec)
    home = folder / spec.owner / spec.repo
    targets = [home / file.path for file in files]
    with _storage_errors():
        missing = [(file, to) for file, to in zip(files, targets, strict=True) if not _is_whole(to, file)]
        partials = [_partial(folder, file) for file, _ in missing]
        _check_space(
            folder, sum(file.size for file, _ in missing) - sum(_size(partial) for partial in partials)
        )
        for (file, _), partial in zip(missing, partials, strict=True):
            _fetch(spec, file, partial, progress or _silent)
        # The first shard comes last: a model is there when its first file is.
        for (_, target), partial in reversed(list(zip(missing, partials, strict=True))):
            if len(files) == 1:
                _check_model(partial, target.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, target)
    return targets[0]


def _listing(spec: HubSpec) -> list[HubFile]:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    # What it has to say of each retry is not for a terminal; what comes of them is told.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    _check_name()
    with _hub_errors(spec):
        entries = list(HfApi(endpoint=_endpoint()).list_repo_tree(spec.repo_id, recursive=True))
    files = [
        HubFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
        for entry in entries
        if isinstance(entry, RepoFile)
    ]
    for file in files:
        if file.path.startswith("/") or ".." in PurePosixPath(file.path).parts or "\\" in file.path:
            raise UpstreamError("The hub lists a file outside its repository: do not trust this one.")
        if file.sha256 is not None and re.fullmatch("[0-9a-f]{64}", file.sha256) is None:
            raise UpstreamError("The hub lists a file without a proper checksum: do not trust this one.")
    return files


def _check_name() -> None:
    """Raises `UpstreamError` if the hub's name leads nowhere, which the library would try six times over."""
    from huggingface_hub import constants

    url = _endpoint() or constants.ENDPOINT
    address = urlsplit(url)
    if address.hostname is None or address.scheme in getproxies():
        return  # a proxy looks names up itself
    try:
        socket.getaddrinfo(address.hostname, address.port or address.scheme)
    except OSError:
        raise UpstreamError(
            f"The hub can't be reached: the name {address.hostname} leads nowhere. Check the network, and "
            "HF_ENDPOINT if it is set."
        ) from None


def _fetch(spec: HubSpec, file: HubFile, partial: Path, progress: Progress) -> None:
    """Complete `partial` and check it. A broken connection is taken up again, until it brings nothing."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(
                f"{PurePosixPath(file.path).name} is being pulled by another process."
            ) from None
        failures = 0
        while out.tell() < file.size:
            before = out.tell()
            try:
                _stream(spec, file, out, progress)
            except UpstreamError as error:
                status = error.upstream_status or 500
                failures = failures + 1 if out.tell() == before else 1
                if failures > RETRIES or (status < 500 and status != 429):
                    raise
                time.sleep(RETRY_S * failures)
    if not _is_whole(partial, file):
        partial.unlink()
        raise ModelLoadError(
            f"{PurePosixPath(file.path).name} came with a wrong checksum and was thrown away: pull it again."
        )


def _stream(spec: HubSpec, file: HubFile, out: BinaryIO, progress: Progress) -> None:
    """Append what is missing, or as much of it as comes."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
    )

    headers = build_hf_headers(library_name="edgecloud") | {"Accept-Encoding": "identity"}
    if out.tell():
        headers["Range"] = f"bytes={out.tell()}-"
    url = hf_hub_url(spec.repo_id, file.path, endpoint=_endpoint())
    with _hub_errors(spec):
        session: Any = get_session()
        with session.stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S
        ) as response:
            hf_raise_for_status(response)
            if response.status_code != 206:
                out.truncate(0)
                out.seek(0)
            for chunk in response.iter_bytes():  # as they come: what breaks off keeps what it got
                if out.tell() + len(chunk) > file.size:
                    raise UpstreamError("The hub sends more than it listed.")
                out.write(chunk)
                progress(out.tell(), file.size, PurePosixPath(file.path).name)
            out.flush()
    if out.tell() < file.size:
        raise UpstreamError("The connection to the hub broke off: pull again to continue.")


def _check_model(partial: Path, name: str) -> None:
    try:
        gguf.read_info(partial)
    except ModelLoadError as error:
        partial.unlink()
        raise ModelLoadError(error.message.replace(partial.name, name)) from None


def _is_whole(path: Path, file: HubFile) -> bool:
    if _size(path) != file.size:
        return False
    with path.open("rb") as content:
        if file.sha256 is not None:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
        blob = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        while piece := content.read(CHUNK):
            blob.update(piece)
        return blob.hexdigest() == file.git_oid


def _partial(folder: Path, file: HubFile) -> Path:
    return folder / ".partial" / (file.sha256 or file.git_oid)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _check_space(folder: Path, needed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"The model needs {needed / 1e9:.2f} GB more and the disk has {free / 1e9:.2f} GB free."
        )


def _endpoint() -> str | None:
    # The library reads it once, at its import; a person may have set it since.
    return os.environ.get("HF_ENDPOINT") or None


def _silent(_done: int, _total: int, _name: str) -> None:
    pass


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except EdgeCloudError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError("The disk is full: make room and pull again to continue.") from None
        raise StorageError(f"The models folder can't be written: {error.strerror or error}.") from None


@contextmanager
def _hub_errors(spec: HubSpec) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise NoPermittedRoute("HF_HUB_OFFLINE is set, so nothing can be pulled.") from None
    except errors.GatedRepoError:
        raise Unauthorized(
            f"{spec.repo_id} is gated: accept its terms on the hub and set HF_TOKEN."
        ) from None
    except errors.RepositoryNotFoundError:
        raise NotFound(f"The hub has no {spec.repo_id}, or it is private and HF_TOKEN is not set.") from None
    except errors.HFValidationError:
        raise BadRequest(
            f"{spec} is not a model on the hub: write hf:owner/repo:QUANT.", param="model"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise Unauthorized(
                f"The hub refuses {spec.repo_id}: set HF_TOKEN to a token that may read it."
            ) from None
        raise UpstreamError(f"The hub answered {status} for {spec}.", upstream_status=status) from None
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # httpx's or httpx2's, by release
        raise UpstreamError(
            f"The hub can't be reached or broke off ({type(error).__name__}): check the network, and "
            "HF_ENDPOINT if it is set."
        ) from None
