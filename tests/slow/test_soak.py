"""Hundreds of requests of every kind, many cut short: nothing piles up."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.support.requests import chat, client

from .house import STORY, Gauges, House, answers, comes_to_rest, footprint

ROUNDS = 4
REQUESTS = 100
MB = 2**20


def whole(http: httpx.Client, dice: random.Random) -> None:
    body = chat(f"{dice.random()} " + STORY * dice.randint(1, 6), max_tokens=dice.randint(1, 12))
    assert http.post("/v1/chat/completions", json=body).status_code == 200


def streamed(http: httpx.Client, dice: random.Random) -> None:
    body = chat(f"{dice.random()}", max_tokens=dice.randint(1, 12), stream=True, n=dice.choice([1, 2]))
    assert http.post("/v1/chat/completions", json=body).text.endswith("data: [DONE]\n\n")


def left_in_mid_stream(http: httpx.Client, dice: random.Random) -> None:
    body = chat(f"{dice.random()} " + STORY, max_tokens=500, stream=True)
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        pieces = answer.iter_raw()
        for _ in range(dice.randint(0, 4)):
            next(pieces)


def given_up(http: httpx.Client, dice: random.Random) -> None:
    body = chat(f"{dice.random()} " + STORY * dice.randint(1, 20), max_tokens=500)
    try:
        http.post("/v1/chat/completions", json=body, timeout=dice.uniform(0.01, 1.0))
    except httpx.TimeoutException:
        return
    raise AssertionError("500 tokens in a second")


def out_of_time(http: httpx.Client, dice: random.Random) -> None:
    body = chat(f"{dice.random()}", max_tokens=2000, ignore_eos=True)
    headers = {"x-request-deadline-ms": str(dice.randint(50, 800))}
    assert http.post("/v1/chat/completions", json=body, headers=headers).status_code == 504


def refused(http: httpx.Client, dice: random.Random) -> None:
    body = dice.choice([chat(model="nope"), chat("word " * 9000), chat(temperature=9), {}])
    assert http.post("/v1/chat/completions", json=body).status_code in (400, 404)


def embedded(http: httpx.Client, dice: random.Random) -> None:
    answer = http.post("/v1/embeddings", json={"model": "minilm", "input": [f"{dice.random()}"] * 3})
    assert answer.status_code == 200


def constrained(http: httpx.Client, dice: random.Random) -> None:
    schema = {"type": "object", "properties": {f"a{dice.randint(0, 99)}": {"type": "boolean"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert http.post("/v1/chat/completions", json=chat(max_tokens=8, response_format=form)).status_code == 200


KINDS: list[Callable[[httpx.Client, random.Random], None]] = [
    *(whole, streamed, left_in_mid_stream, left_in_mid_stream),
    *(given_up, out_of_time, refused, embedded, constrained),
]


# cases: C011, C095, P11
def test_hundreds_of_requests_leave_nothing_behind(home: House) -> None:
    # Little room for finished prefixes: it is full, and its size fixed, after the first round.
    server = home.serve("--parallel", 4, EDGECLOUD_LOCAL__QUEUE_LIMIT="256", EDGECLOUD_LOCAL__PREFIX_MB="32")
    url = server.url

    def one(number: int) -> None:
        dice = random.Random(number)
        with client(url) as http:
            http.timeout = 300
            dice.choice(KINDS)(http, dice)

    sizes: list[tuple[int, int]] = []
    for round_number in range(ROUNDS):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(round_number * REQUESTS, (round_number + 1) * REQUESTS)))
        comes_to_rest(url)
        sizes.append(footprint(server))

    answers(url)
    # The first round fills what is kept: parked prefixes, compiled grammars, allocator arenas.
    _, (rss, files), *_, (last_rss, last_files) = sizes
    # Arenas grow by steps of 20 MB for a while yet; a leak would be of every request's size.
    assert last_rss - rss < (ROUNDS - 2) * REQUESTS * MB / 2, sizes
    assert last_files - files < 8, sizes
    assert 0 < Gauges(url)["prefix_parked_bytes"] <= 32 * MB
    assert Gauges(url)["kv_cells_used"] == 0
    assert "Traceback" not in server.text
    assert Gauges(url)["http_requests_total"] > 0.5 * ROUNDS * REQUESTS
