"""What breaks or hangs on a GPU machine costs its own case and no other."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Of a folder that is no package, under the name by which child processes find it again."""
    folder = Path(__file__).parents[2] / "bench"
    spec = importlib.util.spec_from_file_location("guard", folder / "guard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setitem(sys.modules, "guard", module)
        spec.loader.exec_module(module)
        yield module


def behave(name: str) -> str:
    if name == "raises":
        raise ValueError("out of\nmemory")
    if name == "dies":
        os._exit(9)
    if name == "hangs":
        time.sleep(3600)
    if name == "spoils":
        os.environ["SPOILT"] = "1"
    if name == "suffers" and "SPOILT" in os.environ:
        raise RuntimeError("an illegal memory access was encountered")
    return f"{name} in {os.getpid()}"


def outcomes(guard: ModuleType, names: list[str], **limits: Any) -> dict[str, tuple[str | None, str]]:
    ran = list(guard.each(names, behave, **{"limit_s": 60.0, **limits}))
    assert [name for name, _, _ in ran] == names, "each once, in order"
    return {name: (result, why) for name, result, why in ran}


def test_one_that_fails_or_dies_loses_itself_only(guard: ModuleType) -> None:
    ran = outcomes(guard, ["a", "raises", "b", "dies", "c"])
    assert {name for name, (_, why) in ran.items() if not why} == {"a", "b", "c"}
    assert ran["raises"] == (None, "ValueError: out of")
    assert ran["dies"] == (None, "its process died")


@pytest.mark.slow
def test_one_that_hangs_loses_itself_only(guard: ModuleType) -> None:
    ran = outcomes(guard, ["a", "hangs", "b"], limit_s=5.0)
    assert [why for _, why in ran.values()] == ["", "no end after 5 s", ""]


def test_what_goes_well_shares_a_process(guard: ModuleType) -> None:
    ran = outcomes(guard, ["a", "b"])
    assert str(ran["a"][0]).split()[-1] == str(ran["b"][0]).split()[-1] != str(os.getpid())


def test_one_that_only_fails_behind_another_is_tried_alone(guard: ModuleType) -> None:
    ran = outcomes(guard, ["spoils", "suffers", "b"])
    assert [why for _, why in ran.values()] == ["", "", ""]


@pytest.mark.slow
def test_at_the_end_of_the_time_the_rest_is_not_begun(guard: ModuleType) -> None:
    ran = outcomes(guard, ["a", "hangs", "b"], limit_s=60.0, until=time.monotonic() + 5)
    assert ran["a"][1] == ""
    assert "no end after" in ran["hangs"][1]
    assert ran["b"] == (None, "not begun: the time is over")
