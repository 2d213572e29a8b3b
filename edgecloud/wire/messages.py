"""OpenAI chat messages to ours: parts joined, images kept as data URIs, `developer` turned into `system`."""

from __future__ import annotations

import base64
import re
from typing import Any

from edgecloud.errors import BadRequest
from edgecloud.types import Message, ToolCall

from . import fields as read
from .fields import Fields

MAX_ROLE = 64
_DATA_URI = re.compile(r"data:image/[\w.+-]{1,64};base64,", re.ASCII)
_TEXT_PARTS = ("text", "input_text", "output_text")


def messages(body: Fields) -> tuple[Message, ...]:
    """At least one message; raises `BadRequest` naming the first field at fault."""
    body.require("messages")
    result = tuple(message(item) for item in body.objects("messages"))
    if not result:
        raise body.wrong("messages", "must hold at least one message")
    return result


def message(item: Fields) -> Message:
    """One turn. Raises `BadRequest` for what is none, or is of OpenAI's functions before tools."""
    spoken = role(item)
    if spoken == "function" or item.has("function_call"):
        raise BadRequest(
            f"{item.path} is of the old function_call kind: send tool_calls, and messages of the role tool.",
            param=item.path,
        )
    if not item.has("content") and spoken != "assistant":
        item.require("content")
    text, images = content(item, "content")
    return Message(
        role=spoken,
        content=text,
        images=images,
        tool_calls=tuple(_tool_call(call) for call in item.objects("tool_calls")),
        tool_call_id=item.text("tool_call_id", longest=256),
        name=item.text("name", longest=256),
        reasoning=item.text("reasoning_content") or item.text("reasoning") or None,
    )


def role(item: Fields) -> str:
    spoken = item.name("role", longest=MAX_ROLE)
    return "system" if spoken == "developer" else spoken


def content(item: Fields, name: str) -> tuple[str, tuple[str, ...]]:
    """The text and the images of a string or a list of parts; ("", ()) for null."""
    value: Any = item.get(name)
    if value is None:
        return "", ()
    path = item.param(name)
    if isinstance(value, str):
        return read.text(value, path), ()
    if not isinstance(value, list):
        raise item.wrong(name, "must be a string or a list of parts")
    texts: list[str] = []
    images: list[str] = []
    for number, entry in enumerate(value):
        part = Fields(entry, f"{path}[{number}]")
        kind = part.name("type")
        if kind in _TEXT_PARTS:
            texts.append(part.required_text("text"))
        elif kind == "refusal":
            texts.append(part.text("refusal") or "")
        elif kind in ("image_url", "input_image"):
            images.append(_image(part))
        else:
            raise part.wrong("type", f"is {kind[:64]!r}, which can't be read here: send text or image_url")
    return "".join(texts), tuple(images)


def _image(part: Fields) -> str:
    """Chat nests the URL in an object, Responses does not."""
    if isinstance(part.get("image_url"), dict):
        return data_uri(part.inner("image_url"), "url")
    return data_uri(part, "image_url")


def data_uri(holder: Fields, name: str) -> str:
    """An image as a base64 data URI. Nothing is ever fetched: http, file and all else is refused."""
    uri = holder.required_text(name)
    head = _DATA_URI.match(uri)
    if head is None:
        raise holder.wrong(name, "must be a data:image/…;base64, URI: images are not fetched from elsewhere")
    _check_base64(holder, name, uri[head.end() :])
    return uri


def base64_image(holder: Fields, name: str, media_type: str) -> str:
    """Bare base64 of the given media type, as a data URI."""
    encoded = holder.required_text(name)
    head = f"data:{media_type};base64,"
    if _DATA_URI.fullmatch(head) is None:
        raise holder.wrong("media_type", "must be that of an image")
    _check_base64(holder, name, encoded)
    return head + encoded


def _check_base64(holder: Fields, name: str, encoded: str) -> None:
    try:
        image = base64.b64decode(encoded, validate=True)
    except ValueError:
        image = b""
    if not image:
        raise holder.wrong(name, "does not hold valid base64")


def _tool_call(call: Fields) -> ToolCall:
    call.choice("type", "function")
    function = call.inner("function")
    return ToolCall(
        id=call.name("id"),
        name=function.name("name"),
        arguments=function.text("arguments") or "{}",
    )
