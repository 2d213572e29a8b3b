"""Text of a model, a file or a server as a terminal may show it: control characters are seen, not obeyed."""

from __future__ import annotations

# Terminals act on control characters; the text of a model, a file or a server must not. A carriage return
# would overwrite what is shown.
_VISIBLE: dict[int, int | None] = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"}
_VISIBLE |= {0x7F: 0x2421, ord("\r"): None} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_NO_ESCAPE = {0x1B: 0x241B}


def neutral(text: str, *, is_terminal: bool) -> str:
    """The text with control characters made visible for a terminal; elsewhere only escape is."""
    return text.translate(_VISIBLE if is_terminal else _NO_ESCAPE)
