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
        ({"cache_control": "max-age=0, No-Store"}, False, False),
        ({"cache_control": "no-store", "x_edgecloud_cache": "on"}, False, False),
    ],
)
def test_kept_answers_by_header(headers: dict[str, str], cache: bool | None, fresh: bool) -> None:
    found = asked(**headers)
    assert (found["cache"], found["fresh"]) == (cache, fresh)


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
