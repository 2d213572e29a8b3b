"""The starter model in the pool: what transformers says of the same weights, whatever the schedule."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from edgecloud.models import STARTER, resolve
from edgecloud.pool.admission import Watermarks
from edgecloud.pool.runner import Drawing
from edgecloud.pool.torch_runner import TorchRunner
from edgecloud.pool.vocabulary import FileVocabulary, from_gguf
from edgecloud.schemas import SchemaCompiler
from edgecloud.settings import Settings
from edgecloud.types import Constraint

from .running import Pool, make_config, make_runner

pytestmark = pytest.mark.model

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue? Explain it to a child, and say what would happen on a planet without air.",
    "Write a haiku about the sea.",
    "What is 2 + 2?",
    "Tell me about the history of the bicycle in a few sentences.",
    "List the days of the week.",
    "Translate 'good morning' into French.",
]
CONFIG = make_config(num_blocks=96)
SMALL = {"max_chunk": 7, "token_budget": 24}
CARELESS = Watermarks(cautious=0, guarded=0, urgent=0)
TIGHT = {"num_blocks": 16, "watermarks": CARELESS}


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve(STARTER, Settings(), tuned=False).path


@pytest.fixture(scope="module")
def vocabulary(path: Path) -> FileVocabulary:
    return from_gguf(path)


@pytest.fixture(scope="module")
def prompts(vocabulary: FileVocabulary) -> list[list[int]]:
    frame = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [vocabulary.tokenize(frame.format(text), parse_special=True) for text in QUESTIONS]


@pytest.fixture(scope="module")
def int8(path: Path) -> TorchRunner:
    return make_runner(path, CONFIG)


def fresh(runner: TorchRunner, **changes: object) -> Pool:
    return Pool(runner, make_config(**{"num_blocks": 96, **changes}))


# ------------------------------------------------------------------------------------- quantized, bit for bit


def test_its_weights_stay_quantized_and_it_says_so(int8: TorchRunner) -> None:
    kept = int8.facts.kept
    assert kept["int8"] > 100 * kept["float32"]
    assert int8.facts.converted == {}
    assert int8.facts.kv_type == "float16"


def test_left_packed_as_on_a_gpu_they_score_a_prompt_alike(
    path: Path, int8: TorchRunner, prompts: list[list[int]]
) -> None:
    def score(runner: TorchRunner) -> torch.Tensor:
        pool = fresh(runner)
        request = pool.submit(prompts[2], 1, Drawing(score_prompt=True))
        pool.run()
        return torch.tensor([score.logprob for score in pool.prompt_scores[request]])

    packed = make_runner(path, CONFIG, weights="packed")
    assert packed.facts.kept["Q4_1"] > 60_000_000
    # The embedding, which is looked up in.
    assert packed.facts.converted.keys() == {"Q8_0"}
    difference = (score(packed) - score(int8)).abs()
    assert 0 < difference.mean() < 0.15


@pytest.mark.parametrize("num_together", [2, 3, 8])
def test_a_quantized_row_has_the_same_bits_in_any_batch(
    int8: TorchRunner, prompts: list[list[int]], num_together: int
) -> None:
    drawing = Drawing(logprobs=3)
    alone = [fresh(int8).answer(prompt, 6, drawing) for prompt in prompts[:num_together]]
    # cases: E62
    # Chunks of 7 mix one prompt's prefill with the others' decodes.
    pool = fresh(int8, **SMALL)
    requests = [pool.submit(prompt, 6, drawing) for prompt in prompts[:num_together]]
    pool.run()
    assert [pool.answers[request, 0] for request in requests] == alone
    assert max(len(plan.items) for plan in pool.plans) == num_together


def test_a_prefix_hit_gives_the_same_bits(int8: TorchRunner, prompts: list[list[int]]) -> None:
    # cases: E13
    pool, drawing = fresh(int8), Drawing(logprobs=3)
    first, second = (pool.submit(prompts[2], 5, drawing) for _ in range(2))
    pool.run()
    third = pool.submit(prompts[2], 5, drawing)
    pool.run()
    assert pool.cached[first] == pool.cached[second] == 0
    assert pool.cached[third] == (len(prompts[2]) - 1) // 16 * 16 > 0
    assert pool.answers[first, 0] == pool.answers[second, 0] == pool.answers[third, 0]


@pytest.fixture(scope="module")
def coarse(path: Path) -> TorchRunner:
    """Its keys and values have scales, which must move with them."""
    return make_runner(path, CONFIG, kv_type="int8")


@pytest.mark.parametrize(("name", "mode"), [("int8", "swap"), ("int8", "recompute"), ("coarse", "swap")])
def test_pre_emption_changes_no_bit(
    request: pytest.FixtureRequest, prompts: list[list[int]], name: str, mode: str
) -> None:
    # cases: E42, E76
    int8 = request.getfixturevalue(name)
    drawing = Drawing(temperature=0.9, seed=5, frequency_penalty=0.6, repeat_penalty=1.1, logprobs=2)
    alone = [fresh(int8).answer(prompt, 20, drawing) for prompt in prompts[:2]]
    pool = fresh(int8, num_blocks=4, preemption=mode, caching=False, watermarks=CARELESS)
    requests = [pool.submit(prompt, 20, drawing) for prompt in prompts[:2]]
    pool.run()
    counters = pool.scheduler.counters
    assert (counters.swapped > 0, counters.recomputed > 0) == (mode == "swap", mode == "recompute")
    assert [pool.answers[request, 0] for request in requests] == alone


def test_drafts_change_no_bit_and_spare_steps(int8: TorchRunner, prompts: list[list[int]]) -> None:
    drawing = Drawing(temperature=0.8, seed=3, presence_penalty=0.2, logprobs=1)
    alone = fresh(int8).answer(prompts[5], 24, drawing)
    pool = fresh(int8)
    request = pool.submit(prompts[5], 24, drawing)
    pool.step()
    while pool.scheduler.has_work:
        done = len(pool.answers[request, 0].tokens)
        # Two right guesses, then a wrong one.
        guess = (*alone.tokens[done : done + 2], 11)
        for sequence in pool.scheduler.planner.running:
            pool.scheduler.propose({sequence.id: guess})
        pool.step()
    assert pool.answers[request, 0] == alone
    assert len(pool.plans) < 12


def test_a_schema_is_followed_while_others_speak_freely(
    int8: TorchRunner, vocabulary: FileVocabulary, prompts: list[list[int]]
) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
    }
    mask = SchemaCompiler(vocabulary).compile(Constraint("schema", json.dumps(schema)))
    ends = vocabulary.eog_ids
    pool = fresh(int8)
    bound = pool.submit(prompts[0], 60, Drawing(temperature=0.9, seed=1, stop_ids=ends, mask=mask), n=2)
    free = pool.submit(prompts[0], 20, Drawing(stop_ids=ends))
    pool.run()
    assert pool.failed == {}
    for choice in range(2):
        answer = json.loads(vocabulary.detokenize(pool.answers[bound, choice].tokens, special=False))
        assert answer["size"] in ("small", "large")
        assert isinstance(answer["city"], str)
    assert pool.answers[free, 0] == fresh(int8).answer(prompts[0], 20, Drawing(stop_ids=ends))


# ------------------------------------------------------------------------- dequantized, against transformers


@pytest.fixture(scope="module")
def oracle(path: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def float32(path: Path) -> TorchRunner:
    return make_runner(path, CONFIG, weights="float32")


def logprobs_of(oracle: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([tokens])).logits[0].log_softmax(-1)


def assert_as_the_oracle(oracle: torch.nn.Module, pool: Pool, request: int, prompt: list[int]) -> None:
    """Greedy tokens are the oracle's, and so are the logprobs of the likeliest five at every step."""
    answer = pool.answers[request, 0]
    expected = logprobs_of(oracle, prompt + answer.tokens)[len(prompt) - 1 : -1]
    assert answer.tokens == expected.argmax(-1).tolist()
    values = expected.topk(5).values
    ours = torch.tensor([[value for _, value in score.top] for score in answer.scores])
    torch.testing.assert_close(ours, values, rtol=1e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, SMALL, {**TIGHT, "preemption": "swap"}, {**TIGHT, "preemption": "recompute"}],
    ids=["batched", "chunked", "swapped", "recomputed"],
)
def test_text_and_logits_are_those_of_transformers(
    oracle: torch.nn.Module, float32: TorchRunner, prompts: list[list[int]], changes: dict[str, object]
) -> None:
    pool = fresh(float32, **changes)
    requests = [pool.submit(prompt, 24, Drawing(logprobs=5)) for prompt in prompts]
    again = pool.submit(prompts[2], 24, Drawing(logprobs=5))
    pool.run()
    for request, prompt in zip(requests, prompts, strict=True):
        assert_as_the_oracle(oracle, pool, request, prompt)
    assert pool.answers[again, 0] == pool.answers[requests[2], 0]
    counters = pool.scheduler.counters
    assert (counters.swapped > 0) is (changes.get("preemption") == "swap")
    assert (counters.recomputed > 0) is (changes.get("preemption") == "recompute")


@pytest.mark.slow
def test_prompt_logprobs_are_those_of_transformers_at_every_chunk_size(
    oracle: torch.nn.Module, float32: TorchRunner, prompts: list[list[int]]
) -> None:
    # cases: E57
    prompt = prompts[2]
    expected = logprobs_of(oracle, prompt)[:-1].gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
    for chunk in (1, 2, 5, 16, 512):
        pool = fresh(float32, max_chunk=chunk)
        request = pool.submit(prompt, 1, Drawing(score_prompt=True))
        pool.run()
        ours = torch.tensor([score.logprob for score in pool.prompt_scores[request]])
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.slow
def test_int8_keys_and_values_stay_near(
    oracle: torch.nn.Module, path: Path, prompts: list[list[int]]
) -> None:
    runner = make_runner(path, CONFIG, weights="float32", kv_type="int8")
    assert runner.facts.block_bytes < 0.3 * make_runner(path, CONFIG, weights="float32").facts.block_bytes
    for prompt in prompts[:4]:
        pool = fresh(runner)
        request = pool.submit(prompt, 1, Drawing(score_prompt=True))
        pool.run()
        ours = torch.tensor([score.logprob for score in pool.prompt_scores[request]])
        expected = logprobs_of(oracle, prompt)[:-1]
        theirs = expected.gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
        assert 0 < (ours - theirs).abs().mean() < 0.08


@pytest.mark.slow
def test_quantized_weights_cost_less_than_two_percent_of_perplexity(
    float32: TorchRunner, int8: TorchRunner, vocabulary: FileVocabulary
) -> None:
    # cases: E78
    text = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")[600:5000]
    prompt = vocabulary.tokenize(text)[:900]
    perplexity = []
    for runner in (float32, int8):
        pool = fresh(runner)
        request = pool.submit(prompt, 1, Drawing(score_prompt=True))
        pool.run()
        scores = pool.prompt_scores[request]
        perplexity.append(math.exp(-sum(score.logprob for score in scores) / len(scores)))
    dequantized, quantized = perplexity
    assert quantized < 1.02 * dequantized
