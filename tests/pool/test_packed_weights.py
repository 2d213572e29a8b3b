"""Folders that are packed in 4 bits, AWQ's way and GPTQ's: computed as what they mean, in every form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgecloud.errors import ModelLoadError, NotSupported
from edgecloud.pool.loading import plan_model
from edgecloud.pool.models.packing import Packing, packing_of
from edgecloud.pool.runner import Drawing

from .packed_folders import Way, make_folder
from .running import Pool, make_config, make_runner

WAYS = {
    "awq": Way("awq", 64),
    "awq, one group": Way("awq", -1),
    "gptq": Way("gptq", 32),
    "gptq, symmetric": Way("gptq", 128, symmetric=True),
    "gptq, act-order": Way("gptq", 32, ordered=True),
    "gptq, second format": Way("gptq", 64, checkpoint_format="gptq_v2"),
}
PROMPT = [int(token) for token in torch.randint(0, 199, (60,), generator=torch.Generator().manual_seed(7))]


def scores(folder: Path, weights: Any) -> tuple[torch.Tensor, Pool]:
    """Logprobs of the prompt's tokens, and the pool that gave them."""
    config = make_config(context=256)
    pool = Pool(make_runner(folder, config, weights=weights), config)
    request = pool.submit(PROMPT, 1, Drawing(score_prompt=True))
    pool.run()
    return torch.tensor([score.logprob for score in pool.prompt_scores[request]]), pool


@pytest.fixture(scope="module", params=WAYS)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Way, Path, torch.Tensor]:
    """A folder, and the logprobs that transformers gives with the weights that it means."""
    folder = tmp_path_factory.mktemp("packed")
    model = make_folder(folder, WAYS[request.param])
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    return WAYS[request.param], folder, logits[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None]).squeeze(1)


# cases: E79
def test_dequantized_it_is_what_transformers_computes(made: tuple[Way, Path, torch.Tensor]) -> None:
    _, folder, expected = made
    ours, pool = scores(folder, "float32")
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-4)
    assert sum(pool.runner.facts.converted.values()) > 0


def test_left_packed_as_on_a_gpu_it_is_the_same_to_the_types_precision(
    made: tuple[Way, Path, torch.Tensor],
) -> None:
    way, folder, expected = made
    ours, pool = scores(folder, "packed")
    assert 0 < (ours - expected).abs().mean() < 0.05
    kept = pool.runner.facts.kept
    packed = load_file(folder / "model.safetensors")
    parts = ("qweight", "qzeros", "scales", "g_idx") if way.ordered else ("qweight", "qzeros", "scales")
    assert kept[way.method.upper()] == sum(
        tensor.nbytes for name, tensor in packed.items() if name.endswith(parts)
    )
    assert not pool.runner.facts.converted


def test_on_a_cpu_it_becomes_rows_of_int8(made: tuple[Way, Path, torch.Tensor]) -> None:
    _, folder, expected = made
    assert plan_model(folder, device="cpu").weights == "int8"
    ours, pool = scores(folder, "auto")
    assert 0 < (ours - expected).abs().mean() < 0.05
    assert pool.runner.facts.kept["int8"] > 0


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "hqq", "bits": 4}, "these are hqq:"),
        ({"quant_method": "gptq", "bits": 8}, "gptq of 8 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "awq laid out for gemv"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "gptq laid out for marlin"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}}, "several widths"),
        ("fp8", "unknown method"),
    ],
)
def test_what_no_kernel_reads_is_refused_by_name(tmp_path: Path, said: Any, why: str) -> None:
    make_folder(tmp_path, WAYS["gptq"])
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**facts, "quantization_config": said}))
    with pytest.raises(NotSupported, match=why):
        plan_model(tmp_path)


AWQ, GPTQ = Packing("awq"), Packing("gptq")


@pytest.mark.parametrize(
    ("said", "packing"),
    [
        ({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True, "group_size": 128}, AWQ),
        ({"quant_method": "AWQ", "w_bit": 4, "version": "GEMM", "q_group_size": 64}, AWQ),
        ({"quant_method": "awq", "bits": 4}, AWQ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}, GPTQ),
        ({"quant_method": "gptq", "bits": 4, "desc_act": True}, Packing("gptq", ordered=True)),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "checkpoint_format": "GPTQ",
                "dynamic": {"-:.*lm_head.*": {}},
            },
            GPTQ,
        ),
        (
            {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2", "dynamic": None},
            Packing("gptq", zeros_less_one=False),
        ),
        (None, None),
        ({}, None),
    ],
)
def test_configs_are_read_as_the_programs_that_pack_write_them(said: Any, packing: Packing | None) -> None:
    assert packing_of({"quantization_config": said}) == packing


def test_a_long_name_of_a_method_is_cut() -> None:
    with pytest.raises(NotSupported) as refused:
        packing_of({"quantization_config": {"quant_method": "x" * 5000}})
    assert "these are " + "x" * 60 + ":" in str(refused.value)


def test_modules_that_were_left_alone_are_read_as_they_are(tmp_path: Path) -> None:
    """Files leave out layers that suffered: those have a plain weight among the packed ones."""
    model = make_folder(tmp_path, WAYS["gptq"])
    tensors = load_file(tmp_path / "model.safetensors")
    module = "model.layers.1.self_attn.v_proj."
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(module)}
    tensors[module + "weight"] = model.state_dict()[module + "weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)[:-1]
    expected = expected.gather(1, torch.tensor(PROMPT[1:])[:, None]).squeeze(1)
    torch.testing.assert_close(scores(tmp_path, "float32")[0], expected, rtol=1e-4, atol=2e-4)
    assert (scores(tmp_path, "packed")[0] - expected).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("qzeros", None, "no weight model.layers.0.mlp.down_proj.qzeros"),
        ("scales", lambda tensor: tensor[:3], "down_proj.weight is damaged"),
        ("g_idx", lambda tensor: tensor + 99, "down_proj.weight is damaged"),
        ("qweight", lambda tensor: tensor[:16], "down_proj.weight is damaged|shape"),
    ],
)
def test_a_part_that_is_missing_or_of_another_size_is_named(
    tmp_path: Path, part: str, change: Any, why: str
) -> None:
    make_folder(tmp_path, WAYS["gptq, act-order"])
    tensors = load_file(tmp_path / "model.safetensors")
    name = f"model.layers.0.mlp.down_proj.{part}"
    tensor = tensors.pop(name)
    if change is not None:
        tensors[name] = change(tensor).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=why):
        make_runner(tmp_path, make_config(), weights="packed")
