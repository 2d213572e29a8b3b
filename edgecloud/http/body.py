"""Request bodies: bounded while they arrive and again after decompression, then strict JSON of bounded
depth.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import orjson
import zstandard

from edgecloud.errors import BadRequest, Overloaded, PayloadTooLarge, UnsupportedMedia
from edgecloud.http.asgi import Receive, Scope, header
from edgecloud.http.call import call_of
from edgecloud.http.problem import ClientGone
from edgecloud.units import MB

MAX_DEPTH = 128
READ_TIMEOUT_S = 120.0
ZSTD_MAX_WINDOW = 2**27
# Four bytes of zstd can be 128 KiB: so many at a time are never more than 8 MiB.
ZSTD_STEP = 256


class Bodies:
    """Reads the bodies of one server.

    `limit` is bytes for one body, as sent and again once unpacked; `budget` is bytes for all bodies that are
    still arriving, so that a few hundred half-sent requests cannot fill the memory.
    """

    def __init__(self, limit: int, *, budget: int | None = None, timeout_s: float = READ_TIMEOUT_S) -> None:
        self.limit = limit
        self.budget = budget if budget is not None else max(16 * limit, 2**28)
        self.timeout_s = timeout_s
        self._arriving = 0

    async def json(self, scope: Scope, receive: Receive) -> Any:
        """The body as JSON. Raises `BadRequest`, `PayloadTooLarge`, `UnsupportedMedia`, `Overloaded` or
        `ClientGone`.
        """
        unpack = _unpacker(scope)
        _check_media_type(scope)
        body = await self.read(scope, receive)
        if unpack is not None:
            body = unpack(body, self.limit)
        return parse_json(body)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The body as it was sent."""
        length = header(scope, b"content-length")
        if length is not None and length.isdecimal() and int(length) > self.limit:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.timeout_s):
                body = await self._read(receive)
        except TimeoutError:
            raise BadRequest(f"The request body did not arrive within {self.timeout_s:g} s.") from None
        call_of(scope).body_read = True
        return body

    async def _read(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk: bytes = message.get("body", b"")
                if size + len(chunk) > self.limit:
                    raise self._too_large()
                if not message.get("more_body", False):
                    chunks.append(chunk)
                    return b"".join(chunks)
                if self._arriving + len(chunk) > self.budget:
                    raise Overloaded("Too many large requests are arriving at once: try again in a moment.")
                chunks.append(chunk)
                size += len(chunk)
                self._arriving += len(chunk)
        finally:
            self._arriving -= size

    def _too_large(self) -> PayloadTooLarge:
        return _too_large(self.limit)


def parse_json(body: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN, no lone surrogates, at most `MAX_DEPTH` levels. Raises `BadRequest`."""
    if not body.strip():
        raise BadRequest("The request body is empty: send a JSON object.")
    try:
        value = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"The request body is not valid JSON: {error.msg} (at character {error.pos})."
        ) from None
    # Counting brackets is much cheaper than walking, and nearly every body has few.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth_exceeds(value, MAX_DEPTH):
        raise BadRequest(f"The request body is nested deeper than {MAX_DEPTH} levels.")
    return value


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return any(isinstance(value, dict | list) for value in level)


def _check_media_type(scope: Scope) -> None:
    content_type = (header(scope, b"content-type") or "").lower()
    if content_type.startswith(("multipart/", "application/x-www-form-urlencoded")):
        raise UnsupportedMedia("Forms are not read here: send JSON with 'Content-Type: application/json'.")
    charset = content_type.partition("charset=")[2].partition(";")[0].strip(" \"'")
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia("Only UTF-8 is read here: leave the charset out.")


def _unpacker(scope: Scope) -> Callable[[bytes, int], bytes] | None:
    encoding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if encoding in ("identity", ""):
        return None
    unpack = {"gzip": _gunzip, "x-gzip": _gunzip, "deflate": _inflate, "zstd": _unzstd}.get(encoding)
    if unpack is None:
        raise UnsupportedMedia("This Content-Encoding is not read here: send gzip, deflate, zstd or none.")
    return unpack


def _gunzip(body: bytes, limit: int) -> bytes:
    return _zlib(body, limit, zlib.MAX_WBITS | 16)


def _inflate(body: bytes, limit: int) -> bytes:
    # The name means zlib, and many clients send the bare stream.
    zlib_header = len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return _zlib(body, limit, zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS)


def _zlib(body: bytes, limit: int, wbits: int) -> bytes:
    decoder = zlib.decompressobj(wbits)
    try:
        unpacked = decoder.decompress(body, limit + 1)
    except zlib.error:
        raise BadRequest("The compressed request body is damaged.") from None
    if len(unpacked) > limit:
        raise _too_large(limit)
    if not decoder.eof:
        raise _cut_short()
    if decoder.unused_data:
        raise BadRequest("The compressed request body has something behind its end: send it by itself.")
    return unpacked


def _unzstd(body: bytes, limit: int) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW)
    unpacked, size = [], 0
    frame = decoder.decompressobj()
    try:
        for at in range(0, len(body), ZSTD_STEP):
            rest = body[at : at + ZSTD_STEP]
            while rest:
                if frame.eof:
                    frame = decoder.decompressobj()
                unpacked.append(frame.decompress(rest))
                size += len(unpacked[-1])
                if size > limit:
                    raise _too_large(limit)
                rest = frame.unused_data
    except zstandard.ZstdError:
        raise BadRequest("The compressed request body is damaged.") from None
    if not frame.eof:
        raise _cut_short()
    return b"".join(unpacked)


def _cut_short() -> BadRequest:
    return BadRequest("The compressed request body is cut short: send all of it.")


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The request body is larger than {limit / MB:g} MB: send less, or raise server.body_limit_mb."
    )
