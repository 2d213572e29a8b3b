"""Every test of this folder is slow, drives the real model, and may take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .house import House, house

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.model)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    """A user with empty folders."""
    with house(tmp_path) as opened:
        yield opened
