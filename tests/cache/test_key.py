"""Which requests share answers, and which share none with anybody."""

from __future__ import annotations

from typing import Any

import pytest

from edgecloud.cache.eligibility import FRESH_S, MAX_CHARACTERS
from edgecloud.cache.key import key_of
from edgecloud.types import ChatRequest, Constraint, Message, Sampling, Tool

from .building import ask, make_key

QUESTION = "Why is the sky blue?"


def talk(*texts: str, **fields: Any) -> ChatRequest:
    """A conversation, the user's turns and answers in turn."""
    roles = ("user", "assistant")
    messages = tuple(Message(roles[place % 2], text) for place, text in enumerate(texts))
    return ChatRequest(messages=messages, **{"door": "ask", **fields})


def test_another_wording_is_in_the_same_partition() -> None:
    assert make_key(QUESTION).partition == make_key("What makes the sky blue?").partition
    assert make_key(QUESTION).wording == make_key("  Why is the   sky blue?\n").wording
    assert make_key(QUESTION).wording != make_key("What makes the sky blue?").wording


@pytest.mark.parametrize("piece", ["-", " ", "\n", "a ", "a", "我", "'", "1, "])
def test_a_long_prompt_is_not_looked_through_for_each_of_its_characters(piece: str) -> None:
    key = make_key(piece * 200_000 + " why do cats purr so")  # which would take hours

    assert not key.is_compared


# cases: R47, R53, R55
@pytest.mark.parametrize(
    "other",
    [
        ask(QUESTION, tenant="abc"),
        ask(QUESTION, private=True),
        ask(QUESTION, mode="quality"),
        ask(QUESTION, constraint=Constraint("json")),
        ask(QUESTION, stop=("\n",)),
        ask(QUESTION, sampling=Sampling(frequency_penalty=1.0)),
        ask(QUESTION, template_kwargs={"enable_thinking": False}),
        talk("Who leads Apple?", "Tim Cook.", QUESTION),
        ChatRequest(messages=(Message("system", "Be brief."), Message("user", QUESTION)), door="ask"),
        ChatRequest(messages=(Message("user", QUESTION),), door="http"),
    ],
)
def test_what_else_differs_parts(other: ChatRequest) -> None:
    assert key_of(other).partition not in (None, make_key(QUESTION).partition)


# cases: R47
def test_the_same_turn_in_two_conversations_is_two_questions() -> None:
    one = talk("Who leads Apple?", "Tim Cook.", "How old is he now, roughly?")
    other = talk("Who leads Tesla?", "Elon Musk.", "How old is he now, roughly?")
    old = talk("Who leads Tesla?", "Elon Musk.", "How old is he?")
    cold = Sampling(temperature=0)

    assert key_of(old).partition not in (None, key_of(talk("Who?", "Tim Cook.", "How old is he?")).partition)
    assert (
        key_of(talk(*(m.content for m in one.messages), sampling=cold)).exact
        != key_of(talk(*(m.content for m in other.messages), sampling=cold)).exact
    )


def test_who_asks_and_how_urgently_does_not_part() -> None:
    other = ask(QUESTION, model="m", deadline_s=1, chat_id="c", offline=True, max_tokens=9, fresh=True)
    assert key_of(other).partition == make_key(QUESTION).partition


# cases: R54, R58
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "short"),
        ("continue", "short"),
        ("yes", "short"),
        ("fix it", "short"),
        ("please send Bob 50 euros", "done"),
        ("Can you remind me to call Ann?", "done"),
        ("I want you to delete my account", "done"),
        ("set an alarm for seven", "done"),
        ("Write me a poem about the sea", "new each time"),
        ("give me another idea for dinner", "new each time"),
        ("tell me a story about a fox", "new each time"),
        ("a song about the rain", "new each time"),
        ("could you say that again please", "new each time"),
        ("pick any random number below ten", "new each time"),
        ("What is the weather like in Oslo?", "grows old"),
        ("Who is the current president of France?", "grows old"),
        ("the weather for tomorrow in tokyo", "grows old"),
        ("I lost my card. What is my balance?", "grows old"),
        ("what is the exchange rate between dollars and yen", "grows old"),
        ("i need some ideas for dinner tonight", "grows old"),
        ("I read the paper today\nand who won the match yesterday", "grows old"),
        ("wie wird das Wetter in Berlin", "language"),
        ("pourquoi le ciel est bleu", "language"),
        ("継続は力なりとはどういう意味ですか", "language"),
        ("继续", "short"),
        ("请帮我发送一封邮件给王先生", "done"),
        ("提醒我下午给妈妈打电话", "done"),
        ("写一首关于大海的诗", "new each time"),
        ("再讲一遍给我听听", "new each time"),
        ("今天天气怎么样", "grows old"),
        ("我的卡丢了。现在几点了？", "grows old"),
    ],
)
def test_what_similarity_cannot_tell_has_no_partition(text: str, why: str) -> None:
    key = make_key(text)
    assert key.partition is None
    assert why in key.reason


@pytest.mark.parametrize(
    "text",
    [
        # What somebody tells of their day is not what they ask for.
        "I topped up yesterday and my money isn't there. Why?",
        "This morning I wanted to withdraw cash, but my card was declined!",
        "The exchange rate was different than expected",
        "My card is being declined now and I've tried more than once.",
        "How do I make my card work again?",
        "Can I get another card for my daughter?",
        "How can I move money from another bank?",
        "There is a random charge on my statement",
        "What is the story behind the Trojan horse?",
        "I would like to cancel a transfer",
        'What does "today" mean in this contract?',
        "How do I say see you tomorrow in Spanish?",
        "What time zone is Nepal in?",
        "order of operations in maths",
        "stop words in search engines",
    ],
)
def test_a_word_that_only_sounds_like_it_keeps_nothing_out(text: str) -> None:
    assert make_key(text).partition is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("what is 17 * 23 in all?", "code or sums"),
        ("what does ```if x:\n  y``` do here", "code or sums"),
        ("天空为什么是蓝色的？", "language"),
        ("why is the sky blue? " * 60, "longer"),
    ],
)
def test_what_is_not_compared_is_still_known_again(text: str, why: str) -> None:
    key = make_key(text)
    assert key.partition is not None
    assert not key.is_compared
    assert why in key.only_words
    assert make_key(text).wording == key.wording
    assert key.partition != make_key(QUESTION).partition
    # A space in code may be its meaning.
    assert make_key(text.replace("\n", "\n  ") + " ").wording != key.wording


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (ask(QUESTION, sampling=Sampling(temperature=0.6)), "variety"),
        (ask(QUESTION, sampling=Sampling(seed=7)), "seed"),
        (ask(QUESTION, logprobs=2), "tokens"),
        (ask(QUESTION, echo=True), "tokens"),
        (ChatRequest(messages=(Message("user", QUESTION, images=("data:image/png;base64,AA",)),)), "images"),
        (ChatRequest(prompt="Why is the sky blue?"), "raw prompt"),
        (talk("Why is the sky blue?", "Because"), "not the user's"),
    ],
)
def test_requests_that_ask_for_one_wording_or_for_variety_have_no_partition(
    request_: ChatRequest, why: str
) -> None:
    key = key_of(request_)
    assert key.partition is None
    assert why in key.reason


def test_what_is_just_within_the_limits_has_a_partition() -> None:
    assert make_key("why blue sky").partition is not None
    assert make_key("why is the sky blue? " + "a" * (MAX_CHARACTERS - 21)).partition is not None
    assert make_key(QUESTION, sampling=Sampling(temperature=0.5)).partition is not None


@pytest.mark.parametrize(
    ("fields", "scope"),
    [
        ({"door": "http", "tenant": "abc"}, "key:abc"),
        ({"door": "http"}, "http"),
        ({"door": "ask"}, "user"),
        ({"door": "chat"}, "user"),
    ],
)
def test_answers_belong_to_a_key_to_this_user_or_to_nobody_we_know(
    fields: dict[str, str], scope: str
) -> None:
    assert key_of(ChatRequest(messages=(Message("user", QUESTION),), **fields)).scope == scope  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "request_",
    [
        ask(QUESTION, tools=(Tool("weather"),), sampling=Sampling(temperature=0)),
        ask(QUESTION, n=2, sampling=Sampling(temperature=0)),
        ChatRequest(messages=(Message("tool", "12 degrees", tool_call_id="1"), Message("user", QUESTION))),
    ],
)
def test_tools_and_several_choices_are_not_kept_at_all(request_: ChatRequest) -> None:
    assert not key_of(request_).is_cached


# cases: R58
def test_only_a_repeatable_request_has_an_exact_key() -> None:
    assert make_key(QUESTION).exact is None
    assert make_key(QUESTION, sampling=Sampling(temperature=1.0)).exact is None
    assert make_key(QUESTION, sampling=Sampling(temperature=0)).exact is not None
    assert make_key("continue", sampling=Sampling(temperature=1.0, seed=3)).exact is not None


# cases: R55
def test_the_exact_key_holds_everything_that_the_answer_depends_on() -> None:
    cold = Sampling(temperature=0)
    image = ChatRequest(messages=(Message("user", "?", images=("data:a",)),), door="ask", sampling=cold)
    keys = [
        make_key(QUESTION, sampling=cold).exact,
        make_key(QUESTION + " ", sampling=cold).exact,
        make_key(QUESTION, sampling=Sampling(temperature=0, logit_bias={5: 1.0})).exact,
        make_key(QUESTION, sampling=cold, logprobs=1).exact,
        make_key(QUESTION, sampling=cold, tenant="abc").exact,
        make_key(QUESTION, sampling=Sampling(seed=1)).exact,
        make_key(QUESTION, sampling=Sampling(seed=2)).exact,
        key_of(image).exact,
    ]
    assert len(set(keys)) == len(keys)
    # Greedy: what else is said of drawing changes nothing.
    assert make_key(QUESTION, sampling=Sampling(temperature=0, top_k=5, seed=1)).exact == keys[0]


# cases: R62
def test_an_answer_about_a_moment_is_kept_for_minutes() -> None:
    assert make_key("What is the latest news on Mars?").lifetime_s == FRESH_S
    assert make_key(QUESTION).lifetime_s == 30 * 86400
    assert key_of(ask(QUESTION), lifetime_s=60).lifetime_s == 60


def test_other_languages_are_compared_where_the_embedder_knows_them() -> None:
    german = ask("Warum ist der Himmel über dem Meer so blau?")
    assert key_of(german).partition is None
    assert key_of(german, languages=("en", "de")).partition is not None
    assert key_of(german, languages=("de",)).partition != key_of(ask(QUESTION)).partition


def test_a_language_without_spaces_is_only_known_again_whatever_the_embedder_knows() -> None:
    key = key_of(ask("天空为什么是蓝色的？"), languages=("en", "zh"))
    assert key.partition is not None
    assert "spaces" in key.only_words


@pytest.mark.parametrize("word", ["tell", "SELECT", "how", "write", "give me", "add"])
def test_a_huge_prompt_of_one_word_is_judged_all_the_same(word: str) -> None:
    # A pattern that looks to the end from every word would take minutes here.
    assert make_key(f"{word} " * 50_000).scope
