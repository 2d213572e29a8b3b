"""How large a pool is made of a model and the memory that there is."""

from __future__ import annotations

from typing import Any

import pytest

from edgecloud.errors import ConfigError, ModelLoadError
from edgecloud.models import resolve
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.loading import ModelPlan, plan_model
from edgecloud.pool.open import open_engine, pool_config, weight_bytes
from edgecloud.settings import PoolServerSettings, Settings
from edgecloud.units import MB

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    """The starter model's, from its header: nothing is loaded."""
    return plan_model(resolve("smollm2", Settings(), tuned=False).path, device="cpu")


def sizes(plan: ModelPlan, free: int = 10_000 * MB, **wanted: Any) -> PoolConfig:
    return pool_config(plan, PoolServerSettings(**wanted), free)


def test_context_takes_the_memory_that_it_is_given(plan: ModelPlan) -> None:
    config = sizes(plan, kv_mb=300)

    assert config.num_blocks == 300 * MB // plan.block_bytes
    assert (config.context, config.block_size) == (8192, 16)


def test_without_a_wish_it_takes_what_is_free_but_no_more_than_can_ever_be_used(plan: ModelPlan) -> None:
    assert sizes(plan, free=200 * MB).num_blocks == 200 * MB // plan.block_bytes
    assert sizes(plan, max_running=2, context=1000).num_blocks == 2 * 63


def test_a_context_beyond_the_models_own_is_the_models_own(plan: ModelPlan) -> None:
    assert sizes(plan, context=10**6).context == 8192


def test_every_running_answer_has_a_token_of_each_step(plan: ModelPlan) -> None:
    assert sizes(plan).token_budget == 256
    assert sizes(plan, max_running=1000).token_budget == 1000


def test_main_memory_for_swapping_is_counted_in_blocks(plan: ModelPlan) -> None:
    assert sizes(plan, host_mb=100).num_host_blocks == 100 * MB // plan.block_bytes
    assert sizes(plan).num_host_blocks == 0


@pytest.mark.parametrize("free", [-5 * MB, 0, 2 * MB])
def test_too_little_memory_is_said_with_the_numbers(plan: ModelPlan, free: int) -> None:
    with pytest.raises(ModelLoadError, match=r"a token takes \d+ kB"):
        sizes(plan, free=free)


def test_weights_are_expected_to_take_what_they_do(plan: ModelPlan) -> None:
    # 135 million weights as int8 with their scales.
    assert 135 * MB < weight_bytes(plan) < 160 * MB


def test_its_parameters_are_counted_from_its_sizes(plan: ModelPlan) -> None:
    assert plan.decoder.num_parameters == pytest.approx(134_515_008, rel=0.001)


@pytest.mark.parametrize("name", ["/nowhere/template", "~nouser/template"])
def test_a_template_that_is_not_there_is_told_before_anything_is_loaded(name: str) -> None:
    wanted = PoolServerSettings(chat_template=name, kv_mb=300)
    with pytest.raises(ConfigError, match=r"pool_server\.chat_template"):
        open_engine(Settings(pool_server=wanted))
