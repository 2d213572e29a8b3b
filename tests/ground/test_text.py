"""Characters and stop strings, however the stream is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edgecloud.text import StopMatcher, Utf8Stream

# Few letters, so that stops and near-stops really happen.
texts = st.text(alphabet="abE<é", max_size=40)
stops_of = st.lists(st.text(alphabet="abE<é", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def cut(data, places):
    """The data as pieces, cut at the given places."""
    bounds = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


def decode(pieces):
    stream = Utf8Stream()
    return "".join([stream.feed(piece) for piece in pieces]) + stream.finish()


def match(pieces, stops):
    """What is shown, and the stop."""
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        text, stop = matcher.feed(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


def slow_match(text, stops):
    """Character by character: the first place where a stop has just ended."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            stop = max(done, key=len)
            return text[: end - len(stop)], stop
    return text, None


class TestUtf8Stream:
    @given(
        st.binary(max_size=60) | st.text(max_size=20).map(str.encode),
        st.lists(st.integers(0, 60), max_size=8),
    )
    def test_any_split_of_any_bytes_reads_as_the_whole(self, data, places):
        assert decode(cut(data, places)) == data.decode("utf-8", "replace")

    def test_an_emoji_in_four_tokens_comes_out_once_and_whole(self):
        stream = Utf8Stream()
        assert [stream.feed(bytes([byte])) for byte in "🐙".encode()] == ["", "", "", "🐙"]

    def test_a_byte_that_cannot_begin_a_character_does_not_wait(self):
        assert Utf8Stream().feed(b"\xff") == "\ufffd"

    def test_a_character_broken_off_is_replaced_as_soon_as_that_is_certain(self):
        stream = Utf8Stream()
        assert stream.feed(b"\xf0\x9f") == ""
        assert stream.feed(b"a") == "\ufffda"

    def test_half_a_character_at_the_end_is_replaced(self):
        stream = Utf8Stream()
        assert stream.feed(b"\xe2\x82") == ""
        assert stream.finish() == "\ufffd"
        assert stream.finish() == ""


class TestStopMatcher:
    def test_after_a_stop_nothing_is_held_and_the_rest_is_told(self):
        matcher = StopMatcher(("END",))
        assert matcher.feed("a E") == ("a ", None)
        assert matcher.feed("ND b") == ("", "END")
        assert (matcher.rest, matcher.num_held, matcher.flush()) == (" b", 0, "")

    @given(texts, stops_of, st.lists(st.integers(0, 40), max_size=10))
    def test_any_chunking_ends_at_the_same_stop_with_the_same_text(self, text, stops, places):
        assert match(cut(text, places), stops) == slow_match(text, stops)

    @given(texts, stops_of)
    def test_what_is_held_is_exactly_the_longest_suffix_that_may_become_a_stop(self, text, stops):
        matcher = StopMatcher(stops)
        shown = ""
        for end, char in enumerate(text, 1):
            released, stop = matcher.feed(char)
            shown += released
            if stop is not None:
                return
            heads = {stop[:cut] for stop in stops for cut in range(len(stop))}
            longest = max(n for n in range(end + 1) if text[end - n : end] in heads)
            assert (shown, matcher.num_held) == (text[: end - longest], longest)

    def test_a_stop_over_three_tokens_leaks_none_of_itself(self):
        matcher = StopMatcher(("</answer>",))
        released = [
            matcher.feed(piece)[0]
            for piece in (
                "4",
                "2</",
                "ans",
                "wer>",
            )
        ]
        assert released == ["4", "2", "", ""]

    def test_a_held_tail_is_flushed_at_the_end(self):
        assert match(["the E", "N"], ("END!",)) == ("the EN", None)

    def test_the_text_behind_the_stop_is_kept_apart(self):
        matcher = StopMatcher(("|",))
        assert matcher.feed("a|b") == ("a", "|")
        assert (matcher.rest, matcher.flush()) == ("b", "")

    def test_an_empty_stop_never_matches(self):
        assert match(["abc"], ("",)) == ("abc", None)
