"""Drawing tokens: seeds, biases, penalties, grammars, and logprobs of the raw distribution."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from edgecloud.errors import BadRequest
from edgecloud.local_engine.batcher import Batcher
from edgecloud.local_engine.llama import Context, Grammar, Model
from edgecloud.local_engine.sampler import SamplingPlan, TokenGrammar, derive_seed, plan_sampling
from edgecloud.local_engine.schemas import SchemaCompiler
from edgecloud.settings import LocalSettings
from edgecloud.types import Constraint, Sampling

from .conftest import Answers, chat, collect, job, words

pytestmark = pytest.mark.model

MakeBatcher = Callable[..., Batcher]


async def draw(
    batcher: Batcher, prompt: list[int], count: int, grammar: TokenGrammar | None = None, **plan: object
) -> Answers:
    ids = batcher._model.eog_ids
    return await collect(
        batcher.submit(job(prompt, count, plan=SamplingPlan(**plan), grammar=grammar, stop_ids=ids))  # type: ignore[arg-type]
    )


async def test_the_same_seed_is_the_same_text_and_another_is_not(
    model: Model, make_batcher: MakeBatcher
) -> None:
    prompt = chat(model, "Tell me a story.")
    texts = []
    for seed in (5, 5, 6):
        # A fresh context each, so that not even the cached prefix differs.
        texts.append((await draw(make_batcher(), prompt, 16, temperature=1.0, seed=seed)).tokens[0])
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_seeds_of_choices_are_distinct_for_any_int64() -> None:
    for seed in (0, 1, -1, 2**63 - 1, -(2**63), 0xFFFFFFFF):
        derived = [derive_seed(seed, index) for index in range(128)]
        assert len(set(derived)) == 128
        assert derived == [derive_seed(seed, index) for index in range(128)]
        assert all(0 <= each < 0xFFFFFFFF for each in derived)
    assert derive_seed(None, 0) != derive_seed(None, 0)


async def test_a_bias_forces_and_forbids(model: Model, make_batcher: MakeBatcher) -> None:
    batcher, prompt = make_batcher(), chat(model, "What is the capital of France?")
    plain = await draw(batcher, prompt, 1)
    (first,) = plain.tokens[0]
    (wanted,) = model.tokenize(" banana")
    forced = await draw(batcher, prompt, 3, logit_bias={wanted: 100.0})
    assert forced.tokens[0] == [wanted] * 3
    forbidden = await draw(batcher, prompt, 1, logit_bias={first: -100.0})
    assert forbidden.tokens[0] != [first]


def test_a_bias_outside_the_vocabulary_names_the_token_and_the_size(model: Model) -> None:
    for token in (49152, -1, 10**12):
        with pytest.raises(BadRequest, match=rf"{token}\b.*49152") as error:
            plan_sampling(Sampling(logit_bias={token: 1.0}), LocalSettings(), model)
        assert error.value.param == "logit_bias"


def test_what_is_not_asked_for_comes_from_the_settings(model: Model) -> None:
    plan = plan_sampling(Sampling(temperature=0.0, top_k=0), LocalSettings(top_p=0.5), model)
    assert (plan.temperature, plan.top_k, plan.top_p, plan.min_p) == (0.0, 0, 0.5, 0.05)


async def test_penalties_break_a_loop(model: Model, make_batcher: MakeBatcher) -> None:
    batcher, prompt = make_batcher(), model.tokenize("ha ha ha ha ha ha ha ha ha ha ha ha")
    plain = (await draw(batcher, prompt, 12)).tokens[0]
    assert len(set(plain[:8])) == 1
    for penalty in ({"presence_penalty": 2.0, "frequency_penalty": 2.0}, {"repeat_penalty": 1.8}):
        assert len(set((await draw(batcher, prompt, 12, **penalty)).tokens[0])) > 3


async def test_only_the_repeat_penalty_looks_at_the_prompt(model: Model, make_batcher: MakeBatcher) -> None:
    batcher, prompt = make_batcher(), model.tokenize("ha ha ha ha ha ha ha ha ha ha ha ha")
    (loop,) = (await draw(batcher, prompt, 1)).tokens[0]
    assert (await draw(batcher, prompt, 1, presence_penalty=2.0, frequency_penalty=2.0)).tokens[0] == [loop]
    assert (await draw(batcher, prompt, 1, repeat_penalty=5.0)).tokens[0] != [loop]


async def test_banned_ends_never_come(model: Model, make_batcher: MakeBatcher) -> None:
    batcher, prompt = make_batcher(), chat(model, "Say only: yes")
    assert (await draw(batcher, prompt, 150)).reasons == {0: "stop"}
    plan = SamplingPlan(banned=model.eog_ids)
    answers = await collect(batcher.submit(job(prompt, 150, plan=plan)))
    assert answers.reasons == {0: "length"}
    assert not model.eog_ids & set(answers.tokens[0])


async def test_logprobs_are_those_of_the_raw_distribution(
    model: Model, make_batcher: MakeBatcher, make_context: Callable[..., Context]
) -> None:
    prompt = chat(model, "What is the capital of France?")
    plan = SamplingPlan(temperature=1.5, seed=3, logit_bias={100: 50.0}, presence_penalty=1.0)
    answers = await collect(make_batcher().submit(job(prompt, 6, plan=plan, logprobs=5)))
    context = make_context()
    rows = context.logits_of(prompt + answers.tokens[0], start=len(prompt) - 1)
    for entry, token, row in zip(answers.logprobs[0], answers.tokens[0], rows, strict=False):
        logits = row.astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[token], abs=0.05)
        assert [logprob for _, logprob in entry.top] == pytest.approx(sorted(expected)[:-6:-1], abs=0.05)
        assert all(logprob <= 0 for _, logprob in entry.top)
    context.close()


async def test_a_scored_prompt_gives_each_token_after_the_first_its_logprob(
    model: Model, make_batcher: MakeBatcher, make_context: Callable[..., Context]
) -> None:
    prompt, batcher = words(model, 80), make_batcher()
    # A cached prefix has no logits any more, so it must not be used.
    await collect(batcher.submit(job(prompt, 1)))
    answers = await collect(batcher.submit(job(prompt, 0, score_prompt=True, logprobs=1)))
    assert answers.tokens == [[]]
    assert [score.token_id for score in answers.scores] == prompt[1:]
    context = make_context()
    for score, token, row in zip(answers.scores, prompt[1:], context.logits_of(prompt), strict=False):
        logits = row.astype(np.float64)
        assert score.logprob == pytest.approx(
            logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum()), abs=0.05
        )
    context.close()


async def test_json_mode_writes_an_object(model: Model, make_batcher: MakeBatcher) -> None:
    batcher, grammar = make_batcher(), SchemaCompiler(model).compile(Constraint("json"))
    for seed in range(3):
        prompt = chat(model, "Describe a cat as JSON with the keys name and age.")
        answers = await draw(batcher, prompt, 200, grammar, temperature=1.2, seed=seed, top_k=40)
        if answers.reasons == {0: "stop"}:
            assert isinstance(json.loads(model.detokenize(answers.tokens[0])), dict)
        else:
            assert model.detokenize(answers.tokens[0]).startswith(b"{")


async def test_a_grammar_forces_what_the_model_would_never_say(
    model: Model, make_batcher: MakeBatcher
) -> None:
    grammar = Grammar(model, 'root ::= "qzx" [0-9]{4} "!"')
    answers = await draw(make_batcher(), chat(model, "Hello"), 50, grammar, temperature=1.0, seed=1)
    text = model.detokenize(answers.tokens[0]).decode()
    assert (text[:3], text[3:7].isdigit(), text[7:]) == ("qzx", True, "!")
    assert answers.reasons == {0: "stop"}


async def test_a_complete_grammar_ends_even_where_ends_are_banned(
    model: Model, make_batcher: MakeBatcher
) -> None:
    plan = SamplingPlan(banned=model.eog_ids)
    answers = await collect(
        make_batcher().submit(
            job(chat(model, "Hello"), 50, plan=plan, grammar=Grammar(model, 'root ::= "ab"'))
        )
    )
    assert model.detokenize(answers.tokens[0]) == b"ab"
    assert answers.reasons == {0: "stop"}


async def test_a_grammar_that_leads_nowhere_is_an_error_and_others_go_on(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher()
    source = 'root ::= "a" nothing\nnothing ::= [^\\x00-\\U0010FFFF]'
    dead_end = Grammar(model, source, param="guided_grammar")
    other = batcher.submit(job(chat(model, "Count."), 30))
    with pytest.raises(BadRequest) as raised:
        await draw(batcher, chat(model, "Hello"), 50, dead_end)
    assert raised.value.param == "guided_grammar"
    assert len((await collect(other)).tokens[0]) == 30


async def test_each_answer_of_a_job_follows_the_grammar_by_itself(
    model: Model, make_batcher: MakeBatcher
) -> None:
    grammar = Grammar(model, 'root ::= ("yes" | "no") " " [a-z]{2}')
    plan = SamplingPlan(temperature=1.5, seed=2)
    answers = await collect(
        make_batcher().submit(
            job(chat(model, "Hello"), 20, n=3, plan=plan, grammar=grammar, stop_ids=model.eog_ids)
        )
    )
    assert len(answers.tokens) == 3
    for tokens in answers.tokens:
        word, letters = model.detokenize(tokens).decode().split(" ")
        assert word in ("yes", "no")
        assert len(letters) == 2
