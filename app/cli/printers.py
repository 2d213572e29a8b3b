"""How `ask` shows the events of an answer: as text, as one JSON object, or as one JSON object per event."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, Protocol

from edgecloud.errors import EdgeCloudError
from edgecloud.types import ChoiceDone, Event, Finish, Notice, ReasoningDelta, Start, TextDelta

from ..visible import neutral
from .ending import exit_code
from .shell import dim, note, warn, write

SCHEMA_VERSION = 1


class Printer(Protocol):
    def see(self, event: Event) -> None:
        """Show one event. Raises `ReaderGone`."""

    def end(self, error: EdgeCloudError | None) -> None:
        """The stream is over, well or not. What went wrong is told on stderr by whoever called."""


class TextPrinter:
    """The answer on stdout and nothing else; reasoning and notices on stderr, if that is a terminal, and what
    is not kept also if it is none.

    On a terminal the answer ends in exactly one newline. Elsewhere it is as the model wrote it, and a newline
    is added if it has none at its end. Several choices are separated by a line `---`. Without `stream`
    nothing is shown before the end, and nothing at all of an answer that failed.
    """

    def __init__(self, *, stream: bool, quiet: bool) -> None:
        self._stream = stream
        self._quiet = quiet
        self._is_terminal = sys.stdout.isatty()
        self._shown = 0  # the choice being shown
        self._waiting: dict[int, list[str]] = {}  # text of later choices, or of all without `stream`
        self._done: set[int] = set()
        self._separators = 0  # to be written before the next text
        self._newlines = ""  # at the end of what was shown on a terminal, held back
        self._last = ""
        self._thinking = False

    def see(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._end_thinking()
                if self._stream and event.index == self._shown:
                    self._write(event.text)
                else:
                    self._waiting.setdefault(event.index, []).append(event.text)
            case ReasoningDelta() if event.index == self._shown and sys.stderr.isatty() and not self._quiet:
                self._thinking = True
                write(sys.stderr, dim(event.text))
            case ChoiceDone():
                self._done.add(event.index)
                if self._stream:
                    self._show_next_choices()
            case Notice(kind="history"):
                # What is lost is told to scripts too.
                if not self._quiet:
                    warn(event.text)
            case Notice():
                note(f"edgecloud: {event.text}", quiet=self._quiet)

    def end(self, error: EdgeCloudError | None) -> None:
        self._end_thinking()
        if error is None:
            self._show_next_choices()
        if self._is_terminal:
            if self._last:
                write(sys.stdout, "\n")
            elif error is None:
                note("edgecloud: the answer is empty.", quiet=self._quiet)
        elif error is None and self._last not in ("", "\n"):
            write(sys.stdout, "\n")

    def _show_next_choices(self) -> None:
        """Show what is waiting, up to and with the first choice that is not done."""
        self._write("".join(self._waiting.pop(self._shown, ())))
        while self._shown in self._done:
            self._shown += 1
            self._separators += 1
            self._write("".join(self._waiting.pop(self._shown, ())))

    def _write(self, text: str) -> None:
        while text and self._separators:
            self._separators -= 1
            self._put("---\n" if self._newlines or self._last == "\n" else "\n---\n")
        self._put(text)

    def _put(self, text: str) -> None:
        if self._is_terminal:
            text = self._newlines + text
            shown = text.rstrip("\n")
            self._newlines = text[len(shown) :]
            text = shown
        if text:
            self._last = text[-1]
            write(sys.stdout, neutral(text, is_terminal=self._is_terminal))

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            write(sys.stderr, "\n")


class JsonPrinter:
    """One object at the end: the answer, or the error that there is instead."""

    def __init__(self) -> None:
        self._text: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}
        self._reasons: dict[int, str] = {}
        self._notices: list[dict[str, str]] = []
        self._finish: Finish | None = None

    def see(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._text.setdefault(event.index, []).append(event.text)
            case ReasoningDelta():
                self._reasoning.setdefault(event.index, []).append(event.text)
            case ChoiceDone():
                self._reasons[event.index] = event.reason
            case Notice():
                self._notices.append({"kind": event.kind, "text": event.text})
            case Finish():
                self._finish = event

    def end(self, error: EdgeCloudError | None) -> None:
        if error is not None:
            _write_line({"schema_version": SCHEMA_VERSION, "error": _error(error)})
        elif self._finish is not None:
            self._print(self._finish)

    def _print(self, finish: Finish) -> None:
        choices = [self._choice(index) for index in sorted(self._reasons)]
        _write_line(
            {
                "schema_version": SCHEMA_VERSION,
                "id": finish.receipt.id,
                **(choices[0] if choices else self._choice(0)),
                **({"choices": choices} if len(choices) > 1 else {}),
                "model": finish.receipt.model,
                "chat_id": finish.chat_id,
                "message_id": finish.message_id,
                "usage": dataclasses.asdict(finish.usage),
                "notices": self._notices,
                "receipt": dataclasses.asdict(finish.receipt),
            }
        )

    def _choice(self, index: int) -> dict[str, Any]:
        return {
            "text": "".join(self._text.get(index, ())),
            "reasoning": "".join(self._reasoning.get(index, ())) or None,
            "finish_reason": self._reasons.get(index),
        }


class JsonLinesPrinter:
    """One object per event, the last of type `finish` or `error`."""

    def see(self, event: Event) -> None:
        match event:
            case Start():
                self._write("start", schema_version=SCHEMA_VERSION, **dataclasses.asdict(event))
            case TextDelta():
                self._write("text", index=event.index, text=event.text)
            case ReasoningDelta():
                self._write("reasoning", index=event.index, text=event.text)
            case ChoiceDone():
                self._write("choice_done", index=event.index, finish_reason=event.reason)
            case Notice():
                self._write("notice", **dataclasses.asdict(event))
            case Finish():
                self._write("finish", id=event.receipt.id, **dataclasses.asdict(event))

    def end(self, error: EdgeCloudError | None) -> None:
        if error is not None:
            self._write("error", **_error(error))

    def _write(self, type: str, **fields: Any) -> None:
        _write_line({"type": type, **fields})


def _error(error: EdgeCloudError) -> dict[str, Any]:
    return {"message": error.message, "code": error.code, "exit": exit_code(error)}


def _write_line(value: dict[str, Any]) -> None:
    line = json.dumps(value, ensure_ascii=False)
    write(sys.stdout, neutral(line, is_terminal=sys.stdout.isatty()) + "\n")
