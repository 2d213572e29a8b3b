"""Server-sent events from bytes that arrive cut anywhere, as the WHATWG specification reads them."""

from __future__ import annotations

from edgecloud.errors import UpstreamError

MAX_EVENT_BYTES = 8 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class EventStreamDecoder:
    """Takes the stream's bytes and gives the `data` of each event, its lines joined by newlines.

    Lines end in LF, CR or CRLF; comments and other fields are dropped, since no one sends an OpenAI stream
    anything else in them. What an upstream can make us hold, or read without one event in it, is bounded by
    `max_event_bytes`.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._since_event = 0
        self._after_cr = False
        self._begun = False

    def feed(self, received: bytes) -> list[str]:
        """The events that `received` completes. Raises `UpstreamError` when there is no end of one in
        sight.
        """
        if not received:
            return []
        self._since_event += len(received)
        if self._after_cr:
            # The LF of a CRLF that was cut in two.
            received = received.removeprefix(b"\n")
        if not self._begun:
            received = bytes(self._line) + received
            self._line.clear()
            if len(received) < len(_BOM) and _BOM.startswith(received):
                self._line += received
                return []
            self._begun = True
            received = received.removeprefix(_BOM)
        self._after_cr = received.endswith(b"\r")
        # What is held is not looked at again: a long line may come in many small pieces.
        if b"\r" in received:
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = received.split(b"\n")
        self._line += first
        events: list[str] = []
        if others:
            lines = [bytes(self._line), *others]
            self._line = bytearray(lines.pop())
            events = [event for line in lines if (event := self._take(line)) is not None]
        if events:
            self._since_event = len(self._line) + sum(map(len, self._data))
        if self._since_event > self._max_event_bytes:
            raise UpstreamError(
                f"The upstream sent {self._since_event:,} bytes without one whole event in them."
            )
        return events

    def finish(self) -> list[str]:
        """The event that the end of the stream cut off before its blank line; several servers end so."""
        events = [self._take(bytes(self._line)), self._take(b"")]
        self._line.clear()
        return [event for event in events if event is not None]

    def _take(self, line: bytes) -> str | None:
        """Read one line; the event's data if the line ends one that has any."""
        if line:
            if line.startswith(b"data: "):
                self._data.append(line[6:])
            elif line.startswith(b"data:"):
                self._data.append(line[5:])
            elif line == b"data":
                self._data.append(b"")
            return None
        if not self._data:
            return None
        data = b"\n".join(self._data).decode(errors="replace")
        self._data.clear()
        return data
