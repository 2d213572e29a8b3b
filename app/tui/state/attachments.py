"""Files that go along with a prompt: named with `@path`, or dropped on the terminal, which pastes paths.

Text goes into the prompt under the file's name, as `edgecloud ask -f` does it; an image becomes a data URI.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgecloud.errors import BadRequest
from edgecloud.folders import expanded

from ...text_files import paths_of, read_text

MAX_IMAGE_BYTES = 8 * 2**20

_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"]+)\"|(\S+))")
_ATTACHED = re.compile(r"^--- (.+) ---$", re.MULTILINE)
_IMAGE_NAMES = re.compile(r"\.(?:png|jpe?g|gif|webp|bmp|tiff?|heic|heif|avif|svg|ico)$", re.IGNORECASE)
_FILE_NAMES = re.compile(
    rf"^(?:~|\.{{0,2}}/)[^()\"'`=]*$|{_IMAGE_NAMES.pattern}|[\w-]\.(?:txt|md|rst|log|csv|tsv|jsonl?|ya?ml|toml|ini|cfg"
    r"|conf|xml|html?|css|tex|pdf|docx?|xlsx?|pptx?|odt|py|ipynb|js|ts|tsx|jsx|sh|sql|c|cc|cpp|h|hpp|rs|go|java|rb"
    r"|php|diff|patch|env|lock)$",
    re.IGNORECASE,
)
"""What is written as a path, or with an ending that files have: not `@alice`, `@app.route`, `@types/node`."""
_IMAGE_TYPES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent: the text with the files' texts after it, and images as data URIs. `files` are the
    absolute paths of all of them, and of what links among them lead to.
    """

    text: str
    images: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def gather(typed: str) -> Prompt:
    """The prompt that was typed, with the files it mentions. An `@name` that is no file stays a word, but
    one that is written as a file's is a mistake: nobody would see that it did not go along.

    Raises `BadRequest` for a file that is there and cannot be sent, for one that is not there, for a folder.
    """
    parts, images, paths = [typed], [], mentioned(typed)
    for name in _names(typed):
        if _is(Path.is_dir, name):
            raise BadRequest(f"{name[:200]} is a folder: name a file in it, or leave the @ out.")
        if _FILE_NAMES.search(name) and not _is(Path.exists, name):
            raise BadRequest(f"There is no file {name[:200]}: check its name, or leave the @ out.")
    for path in paths:
        media_type = image_type(path)
        if media_type is not None:
            images.append(_data_uri(path, media_type))
        elif _IMAGE_NAMES.search(path.name) and path.suffix.lower() != ".svg":
            raise BadRequest(
                f"{path.name} is no PNG, JPEG, GIF or WebP: models take no other images, convert it."
            )
        else:
            parts.append(f"--- {path.name} ---\n{read_text(str(path))}".rstrip("\n"))
    return Prompt("\n\n".join(parts), tuple(images), tuple(each for path in paths for each in paths_of(path)))


def mentioned(typed: str) -> list[Path]:
    """The files that a prompt names with `@`, each once."""
    paths = [expanded(name) for name in _names(typed)]
    return [path for path in paths if is_file(path)]


def _names(typed: str) -> list[str]:
    """What stands after an `@`, each once."""
    names = [quoted or plain.rstrip(",.;:!?)") for quoted, plain in _MENTION.findall(typed)]
    return list(dict.fromkeys(names))


def as_mentions(pasted: str) -> str | None:
    """Pasted text as mentions if all of it is paths of files, as a terminal writes what is dropped on it."""
    if len(pasted) > 4096 or "\n" in pasted.strip():
        return None
    try:
        words = shlex.split(pasted)
    except ValueError:
        return None
    names = [word.removeprefix("file://") for word in words]
    if not names or not all(name.startswith(("/", "~")) and is_file(name) for name in names):
        return None
    return " ".join(f'@"{name}"' if " " in name else f"@{name}" for name in names) + " "


def image_type(path: Path) -> str | None:
    """The media type of an image, told by its first bytes; None for everything else."""
    try:
        with path.open("rb") as file:
            head = file.read(12)
    except OSError:
        return None
    for magic, media_type in _IMAGE_TYPES.items():
        if head.startswith(magic) and (magic != b"RIFF" or head[8:12] == b"WEBP"):
            return media_type
    return None


def shown(text: str) -> tuple[str, list[tuple[str, int]]]:
    """A sent prompt as it is shown: what was typed, and each file's name and number of lines."""
    matches = [
        match for match in _ATTACHED.finditer(text) if f"@{match[1]}" in text or f"/{match[1]}" in text
    ]
    if not matches:
        return text, []
    ends = [match.start() for match in matches[1:]] + [len(text)]
    files = [
        (match[1], len(text[match.end() : end].strip("\n").splitlines()))
        for match, end in zip(matches, ends, strict=True)
    ]
    return text[: matches[0].start()].rstrip("\n"), files


def is_file(name: str | Path) -> bool:
    """Whether there is a file of this name; a name that can't be one is none."""
    return _is(Path.is_file, name)


def _is(kind: Callable[[Path], bool], name: str | Path) -> bool:
    try:
        return kind(expanded(name))
    except OSError:
        return False


def _data_uri(path: Path, media_type: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path.name} cannot be read: {error.strerror or error}.") from error
    if len(data) > MAX_IMAGE_BYTES:
        raise BadRequest(f"{path.name} is larger than {MAX_IMAGE_BYTES // 2**20} MiB: scale it down first.")
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
