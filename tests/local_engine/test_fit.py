"""Memory and threads: what is planned, what is refused, and the sentences about it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from edgecloud.errors import ModelLoadError
from edgecloud.gguf import GgufInfo, read_info
from edgecloud.local_engine.fit import MemoryPlan, available_memory, cgroup_available, minimum, plan_memory
from edgecloud.local_engine.threads import ThreadChoice, cgroup_cpus, choose_threads
from edgecloud.settings import LocalSettings
from edgecloud.units import MB

GB = 1 << 30


@pytest.fixture
def small(model_path: Path) -> GgufInfo:
    return read_info(model_path)


@pytest.fixture
def eight_billion(small: GgufInfo) -> GgufInfo:
    """Llama 3.1 8B at four bits."""
    return dataclasses.replace(
        small,
        context_length=131072,
        embedding_length=4096,
        vocab_size=128256,
        kv_width=32 * 8 * 128 * 2,
        tensor_bytes=int(4.6 * GB),
    )


def test_a_small_model_gets_room_for_many_chats(small: GgufInfo) -> None:
    plan = plan_memory(small, LocalSettings(), 16 * GB, name="small")
    assert plan.n_ctx == 8192
    assert plan.cells >= 2 * plan.n_ctx
    assert plan.total < 1 * GB


def test_an_eight_billion_model_on_sixteen_gigabytes_is_sane(eight_billion: GgufInfo) -> None:
    plan = plan_memory(eight_billion, LocalSettings(), 12 * GB, name="8b")
    assert 8192 <= plan.n_ctx <= 20000
    assert plan.total < 9 * GB


def test_little_memory_means_a_smaller_context(eight_billion: GgufInfo) -> None:
    plenty = plan_memory(eight_billion, LocalSettings(), 12 * GB, name="8b")
    little = plan_memory(eight_billion, LocalSettings(), 7 * GB, name="8b")
    assert 512 <= little.n_ctx < plenty.n_ctx
    assert little.total <= 7 * GB


def test_a_quantised_memory_holds_more(eight_billion: GgufInfo) -> None:
    plain = plan_memory(eight_billion, LocalSettings(), 8 * GB, name="8b")
    quantised = plan_memory(eight_billion, LocalSettings(kv_type="q8_0"), 8 * GB, name="8b")
    assert quantised.cells > 1.8 * plain.cells


def test_what_does_not_fit_is_refused_with_numbers(eight_billion: GgufInfo) -> None:
    with pytest.raises(ModelLoadError, match=r"8b does not fit.*4,939 MB of weights.*2,147 MB are free"):
        plan_memory(eight_billion, LocalSettings(), 2 * GB, name="8b")


def test_a_budget_is_not_called_free_memory(eight_billion: GgufInfo) -> None:
    settings = LocalSettings(memory_budget_mb=2147)
    with pytest.raises(ModelLoadError, match=r"and local\.memory_budget_mb leaves 2,147 MB\.$"):
        plan_memory(eight_billion, settings, 2147 * MB, name="8b")


def test_the_numbers_of_a_plan_add_up() -> None:
    plan = MemoryPlan(cells=512, n_ctx=512, weights=1400 * 1000, kv=1400 * 1000, compute=1400 * 1000)

    total, *parts = (int(number) for number in re.findall(r"(\d+) MB", str(plan)))
    assert parts == [1, 1, 1, 50]
    assert total == sum(parts)


def test_an_asked_context_is_kept_or_refused_never_cut(eight_billion: GgufInfo) -> None:
    assert plan_memory(eight_billion, LocalSettings(ctx_size=16000), 12 * GB, name="8b").cells == 16128
    with pytest.raises(ModelLoadError) as error:
        plan_memory(eight_billion, LocalSettings(ctx_size=100_000), 12 * GB, name="8b")
    hint = int(error.value.message.split("local.ctx_size = ")[1].split()[0])
    assert plan_memory(eight_billion, LocalSettings(ctx_size=hint), 12 * GB, name="8b").cells == hint


def test_the_minimum_is_what_the_plan_never_goes_below(small: GgufInfo) -> None:
    least = minimum(small, LocalSettings())
    assert plan_memory(small, LocalSettings(), least.total, name="small") == least
    with pytest.raises(ModelLoadError):
        plan_memory(small, LocalSettings(), least.total - MB, name="small")


def test_memory_is_bounded_by_the_cgroup(tmp_path: Path) -> None:
    assert cgroup_available(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    (tmp_path / "memory.stat").write_text("anon 90\ninactive_file 10\n")
    assert cgroup_available(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert cgroup_available(tmp_path) == 910
    assert available_memory() > 0


def test_threads_follow_the_quota_and_say_so(tmp_path: Path) -> None:
    assert choose_threads(3) == ThreadChoice(3, "3, as configured")
    assert choose_threads().count >= 1
    assert str(choose_threads().count) in choose_threads().reason
    assert cgroup_cpus(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cgroup_cpus(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cgroup_cpus(tmp_path) is None
