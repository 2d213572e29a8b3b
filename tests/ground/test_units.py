"""Ages and money as people read them."""

from __future__ import annotations

import pytest

from edgecloud.units import age, money


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "some time"),
        (-3.0, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 minute"),
        (7199.0, "1 hour"),
        (7200.0, "2 hours"),
        (86_399.0, "23 hours"),
        (400 * 86_400.0, "400 days"),
    ],
)
def test_an_age_is_in_the_largest_unit_of_which_it_is_one(seconds: float | None, text: str) -> None:
    assert age(seconds) == text
