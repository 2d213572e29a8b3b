"""Every family computes what transformers computes, from the same files, in whatever steps it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from edgecloud.errors import ModelLoadError, NotSupported
from edgecloud.pool.loading import plan_model
from edgecloud.pool.runner import Drawing

from .running import Pool, make_config, make_runner, make_torch_runner

SIZES = {
    "vocab_size": 199,
    "hidden_size": 96,
    "intermediate_size": 136,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3_ROPE, "attention_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 21}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_attention_heads": 7, "num_key_value_heads": 1}),
}
PROMPT = [int(token) for token in torch.randint(0, 199, (70,), generator=torch.Generator().manual_seed(7))]


def build(name: str, folder: Path, **sizes: int) -> transformers.PreTrainedModel:
    family, changes = FAMILIES[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes, **sizes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for weight in model.parameters():
        # As made, norms are all ones and biases all zeros: mistakes with them would not show.
        torch.nn.init.normal_(weight, mean=0.0 if weight.dim() > 1 else 0.4, std=0.1)
    model.save_pretrained(folder, max_shard_size="100KB")
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, torch.Tensor]:
    """A model's folder, and the logprobs that transformers gives for each token of the prompt."""
    folder = tmp_path_factory.mktemp(request.param)
    model = build(request.param, folder)
    with torch.inference_mode():
        return folder, model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("make", [make_runner, make_torch_runner], ids=["native", "torch"])
@pytest.mark.parametrize("chunk", [512, 13])
def test_a_prompt_is_scored_as_transformers_scores_it(
    made: tuple[Path, torch.Tensor], make: Callable[..., Any], chunk: int
) -> None:
    folder, expected = made
    config = make_config(max_chunk=chunk, block_size=8)
    pool = Pool(make(folder, config), config)
    request = pool.submit(PROMPT, 1, Drawing(score_prompt=True, logprobs=5))
    pool.run()
    scores = pool.prompt_scores[request]
    assert [score.token_id for score in scores] == PROMPT[1:]
    ours = torch.tensor([score.logprob for score in scores])
    theirs = expected[:-1].gather(1, torch.tensor(PROMPT[1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)
    values, ids = expected[:-1].topk(5)
    assert [[token for token, _ in score.top] for score in scores] == ids.tolist()
    torch.testing.assert_close(
        torch.tensor([[value for _, value in score.top] for score in scores]), values, rtol=1e-4, atol=2e-4
    )
    assert pool.answers[request, 0].tokens == [int(expected[-1].argmax())]


# Keys are looked at 64 at a time: windows begin within such a chunk, and some rows do not see all chunks.
@pytest.mark.parametrize(("window", "head_dim"), [(100, 80), (64, 32), (7, 128)])
def test_a_long_prompt_is_scored_the_same_wherever_it_is_cut(
    tmp_path: Path, window: int, head_dim: int
) -> None:
    model = build("mistral", tmp_path, sliding_window=window, head_dim=head_dim)
    prompt = [*PROMPT, *PROMPT[::-1], *PROMPT[::2], *PROMPT]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    scores = []
    for chunk in (512, 61, 3):
        config = make_config(max_chunk=chunk, block_size=8)
        pool = Pool(make_runner(tmp_path, config, kv_type="float32"), config)
        request = pool.submit(prompt, 1, Drawing(score_prompt=True))
        pool.run()
        scores.append([score.logprob for score in pool.prompt_scores[request]])
    assert scores[0] == scores[1] == scores[2]
    theirs = expected[:-1].gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(scores[0]), theirs, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kv_type", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("make", [make_runner, make_torch_runner], ids=["native", "torch"])
def test_coarser_keys_and_values_change_little(
    tmp_path: Path, make: Callable[..., Any], kv_type: str
) -> None:
    model = build("llama3", tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    config = make_config()
    pool = Pool(make(tmp_path, config, kv_type=kv_type), config)
    request = pool.submit(PROMPT, 1, Drawing(score_prompt=True))
    pool.run()
    ours = torch.tensor([score.logprob for score in pool.prompt_scores[request]])
    theirs = expected[:-1].gather(1, torch.tensor(PROMPT[1:]).unsqueeze(1)).squeeze(1)
    difference = (ours - theirs).abs().mean()
    assert 0 < difference < {"float16": 2e-3, "bfloat16": 2e-2, "int8": 3e-2}[kv_type]


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GemmaForCausalLM"]}))
    with pytest.raises(NotSupported, match=r"GemmaForCausalLM.*LlamaForCausalLM"):
        plan_model(tmp_path)


def test_another_rotary_scaling_is_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    facts["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(NotSupported, match="yarn"):
        plan_model(tmp_path)


def test_a_missing_shard_and_a_pickle_beside_it_are_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    torch.save({"x": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    shard.unlink()
    with pytest.raises(ModelLoadError, match=shard.name):
        make_runner(tmp_path, make_config())


def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(ModelLoadError, match="outside"):
        make_runner(tmp_path, make_config())


def test_a_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**facts, "intermediate_size": 144}))
    with pytest.raises(ModelLoadError, match=r"0\.gate\.weight.*\(136, 96\)"):
        make_runner(tmp_path, make_config())
