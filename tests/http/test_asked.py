"""What the headers of a request ask for."""

from __future__ import annotations

import pytest

from edgecloud.errors import BadRequest
from edgecloud.http.asked import asked_of


def asked(**headers: str) -> dict[str, object]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return asked_of({"type": "http", "headers": pairs})


@pytest.mark.parametrize(
    ("headers", "cache", "fresh"),
    [
        ({}, None, False),
        ({"x_edgecloud_cache": "on"}, True, False),
        ({"x_edgecloud_cache": "off"}, False, False),
        ({"x_edgecloud_fresh": "true"}, None, True),
        ({"cache_control": "no-cache"}, None, True),
        ({"cache_control": "max-age=0"}, None, True),
        ({"cache_control": "max-age=0, No-Store"}, False, True),
        ({"cache_control": "no-store", "x_edgecloud_cache": "on"}, False, False),
    ],
)
def test_kept_answers_by_header(headers: dict[str, str], cache: bool | None, fresh: bool) -> None:
    found = asked(**headers)
    assert (found["cache"], found["fresh"]) == (cache, fresh)


@pytest.mark.parametrize(
    ("control", "max_age_s", "only_kept", "cache"),
    [
        ("max-age=60", 60.0, False, None),
        ('Max-Age="60", only-if-cached', 60.0, True, True),
        ("max-age=soon", None, False, None),
        ("max-age", None, False, None),
        ("only-if-cached, no-store", None, True, False),
    ],
)
def test_how_old_a_kept_answer_may_be_and_whether_it_must_be_one(
    control: str, max_age_s: float | None, only_kept: bool, cache: bool | None
) -> None:
    found = asked(cache_control=control)
    assert (found["max_age_s"], found["only_kept"], found["cache"]) == (max_age_s, only_kept, cache)


@pytest.mark.parametrize("value", ["", "0", "False", " no ", "OFF"])
def test_a_word_for_no_asks_for_no_privacy(value: str) -> None:
    assert asked(x_edgecloud_private=value)["private"] is False
    assert asked()["private"] is False


@pytest.mark.parametrize("value", ["1", "true", "maybe", "fasle"])
def test_whatever_else_the_header_says_privacy_was_meant(value: str) -> None:
    assert asked(x_edgecloud_private=value)["private"] is True


def test_a_cache_header_that_nobody_understands_is_refused() -> None:
    with pytest.raises(BadRequest, match="x-edgecloud-cache"):
        asked(x_edgecloud_cache="sometimes")
