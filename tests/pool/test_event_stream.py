"""Server-sent events, however the network cuts them."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.errors import UpstreamError
from edgecloud.pool.event_stream import EventStreamDecoder

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
# A data line can hold anything but line ends; NUL and U+FEFF within it are text.
DATA = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)


def decode(stream: bytes, *cuts: int) -> list[str]:
    decoder = EventStreamDecoder()
    edges = [0, *sorted(cuts), len(stream)]
    events = [event for a, b in pairwise(edges) for event in decoder.feed(stream[a:b])]
    return events + decoder.finish()


@given(st.data(), st.lists(st.lists(DATA, min_size=1, max_size=3), max_size=5), LINE_ENDS, st.booleans())
def test_events_come_out_whole_wherever_the_bytes_are_cut(
    data: st.DataObject, events: list[list[str]], line_end: str, with_bom: bool
) -> None:
    lines = []
    for event in events:
        for line in event:
            lines += data.draw(
                st.sampled_from([[], [": ping"], ["id: 7"], ["event: message"], ["retry"], ["x"]])
            )
            lines += [f"data:{' ' if line.startswith(' ') else data.draw(st.sampled_from(['', ' ']))}{line}"]
        lines += [""] * data.draw(st.integers(1, 3))
    text = "".join(line + line_end for line in lines)
    stream = b"\xef\xbb\xbf" * with_bom + text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))

    assert decode(stream, *cuts) == ["\n".join(event) for event in events]


def test_every_single_cut_of_a_typical_stream_gives_the_same_events() -> None:
    stream = '\ufeffdata: {"a": "é"}\r\n\r\n: ping\n\ndata: one\r\ndata: two\r\n\r\ndata: [DONE]\r\r'.encode()

    for at in range(len(stream) + 1):
        assert decode(stream, at) == ['{"a": "é"}', "one\ntwo", "[DONE]"]
    assert decode(stream, *range(len(stream))) == ['{"a": "é"}', "one\ntwo", "[DONE]"]


def test_a_piece_of_a_long_line_costs_its_own_size() -> None:
    decoder = EventStreamDecoder()
    decoder.feed(b"data: " + b"x" * 2**20)
    decoder.feed(b"x")  # what is held grows, and has room then

    tracemalloc.start()
    try:
        decoder.feed(b"x" * 100)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


def test_an_event_that_the_end_cuts_off_still_counts() -> None:
    assert decode(b"data: a\n\ndata: [DONE]") == ["a", "[DONE]"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert decode(b"data: \xff!\n\n") == ["\ufffd!"]


@pytest.mark.parametrize("flood", [b" ", b"\n", b": ping\n\n", b"data: x\n"], ids=repr)
def test_a_flood_without_an_event_is_cut_off(flood: bytes) -> None:
    decoder = EventStreamDecoder(max_event_bytes=10_000)

    with pytest.raises(UpstreamError, match="without one whole event"):
        any(decoder.feed(flood) for _ in range(10_001))


def test_events_may_go_on_for_ever() -> None:
    decoder = EventStreamDecoder(max_event_bytes=1_000)

    assert sum(len(decoder.feed(b": ping\n\ndata: x\n\n")) for _ in range(1_000)) == 1_000
