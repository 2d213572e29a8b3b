"""Cases of the API that only a real model and its template can hold, over HTTP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.process import Process
from tests.support.requests import chat, client, frames

from .house import STORY, Gauges, comes_to_rest, house, wait_for

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server whose whole memory is 512 tokens."""
    with house(tmp_path_factory.mktemp("cases")) as opened:
        serving = opened.serve("--ctx-size", 512)
        yield serving
        comes_to_rest(serving.url)
        assert "Traceback" not in serving.text


def post(server: Process, **body: Any) -> dict[str, Any]:
    with client(server.url) as http:
        answer = http.post(PATH, json={"temperature": 0, **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def text(answer: dict[str, Any]) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


# cases: C017
def test_a_custom_role_is_the_same_in_parts_and_as_text(small: Process) -> None:
    parts = [{"type": "text", "text": "Name the days"}, {"type": "text", "text": " of the week."}]
    results = []
    for content in ("Name the days of the week.", parts):
        messages = [{"role": "critic", "content": content}]
        with client(small.url) as http:
            answer = http.post(PATH, json={"messages": messages, "max_tokens": 8, "temperature": 0})
        results.append((answer.status_code, answer.json().get("choices")))
    assert results[0] == results[1]
    assert results[0][0] in (200, 400)


# cases: C019
def test_the_prompt_grows_with_the_turns(small: Process) -> None:
    first = post(small, **chat("Name a colour.", max_tokens=8))
    turns = [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": text(first)},
        {"role": "user", "content": "Another one."},
    ]
    second = post(small, messages=turns, max_tokens=8)
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + 8
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


# cases: C028
def test_a_pinned_slot_and_two_choices_do_not_lock(small: Process) -> None:
    assert len(post(small, **chat("hi", max_tokens=4, n=2, id_slot=0))["choices"]) == 2


# cases: C046, P19
def test_a_stop_of_several_tokens_leaks_nothing_into_a_stream(small: Process) -> None:
    whole = text(post(small, **chat(STORY, max_tokens=40)))
    stop = whole[30:45]
    with client(small.url) as http:
        body = chat(STORY, max_tokens=40, temperature=0, stop=[stop], stream=True)
        events = frames(http.post(PATH, json=body).text)[:-1]
    streamed = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert streamed == whole[: whole.index(stop)]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


# cases: C047, P18
def test_text_held_back_for_a_stop_is_flushed_at_the_end(small: Process) -> None:
    whole = text(post(small, **chat(STORY, max_tokens=20)))
    assert text(post(small, **chat(STORY, max_tokens=20, stop=[whole[-6:] + "never"]))) == whole


# cases: C081, C084
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 1_000_000}, {"max_completion_tokens": 2**31}])
def test_an_answer_ends_where_the_context_does(small: Process, fields: dict[str, int]) -> None:
    answer = post(small, **chat(STORY, ignore_eos=True, **fields))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] in range(500, 514)


# cases: C083
def test_two_answers_that_do_not_fit_together_both_come_to_their_end(small: Process) -> None:
    """Each may fill the memory: the younger is put back and goes on when there is room."""

    def ask(number: int) -> dict[str, Any]:
        return post(small, **chat(f"{number}. {STORY}", max_tokens=300, ignore_eos=True))

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, (1, 2)))
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [300, 300]
    assert Gauges(small.url)["num_preemptions"] > 0


# cases: C091, P29
def test_a_long_prompt_leaves_running_streams_their_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Counted, not timed: while the newcomer's prompt is read, the running stream goes on."""
    with house(tmp_path_factory.mktemp("long")) as opened:
        server = opened.serve("--ctx-size", 8192)
        arrived: list[str] = []

        def stream() -> None:
            body = chat(STORY, stream=True, max_tokens=2000, ignore_eos=True)
            # It is ended with its server.
            with (
                contextlib.suppress(httpx.TransportError),
                client(server.url) as http,
                http.stream("POST", PATH, json=body, timeout=200) as answer,
            ):
                arrived.extend(answer.iter_text())

        threading.Thread(target=stream, daemon=True).start()
        wait_for(lambda: len(arrived) > 5)
        before = len(arrived)
        assert post(server, **chat("word " * 3000, max_tokens=1))["usage"]["prompt_tokens"] > 3000
        assert len(arrived) - before >= 10


# cases: C132, P40
@pytest.mark.parametrize(
    "roles",
    [
        ("system", "system", "user"),
        ("system", "user", "user"),
        ("user", "system", "user"),
        ("developer", "system", "user"),
        ("assistant", "user"),
        ("system",),
        ("user", "assistant"),
        ("tool", "user"),
    ],
)
def test_turns_in_any_order_are_answered_or_400(small: Process, roles: tuple[str, ...]) -> None:
    messages = [
        {"role": role, "content": f"This is text {number}.", "tool_call_id": "call_1"}
        for number, role in enumerate(roles)
    ]
    with client(small.url) as http:
        answer = http.post(PATH, json={"messages": messages, "max_tokens": 4})
    assert answer.status_code in (200, 400)
