"""Sizes and money as people read them."""

from __future__ import annotations

import pytest

from edgecloud.units import money


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (12.5, "12.50"),
        (1234.567, "1234.57"),
        (0.5, "0.50"),
        (0.125, "0.125"),
        (0.004, "0.004"),
        (0.000034, "0.000034"),
        (1e-06, "0.000001"),
        (3.4e-10, "0.00000000034"),
        (-0.0021, "-0.0021"),
    ],
)
def test_money_has_the_digits_that_say_something_and_no_exponent(amount: float, text: str) -> None:
    assert money(amount) == text
