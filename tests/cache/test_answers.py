"""The cache as a whole: what is given again, to whom, for how long, and what it learns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecloud.cache import answers
from edgecloud.cache.answers import AnswerCache
from edgecloud.cache.experience import Domain
from edgecloud.cache.key import key_of
from edgecloud.cache.records import Found, Hit, Recalled
from edgecloud.errors import StorageError
from edgecloud.types import Notice, Sampling, ToolCallDelta

from .building import (
    WHO,
    Clock,
    ask,
    at,
    hit,
    keep,
    look,
    make_answer,
    make_cache,
    make_events,
    make_key,
)

COLD = Sampling(temperature=0)
SKY = "Why is the sky blue?"
SKY_TOO = "Please tell me why the sky is so blue."


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
def cache(path: Path, clock: Clock) -> Iterator[AnswerCache]:
    cache = make_cache(path, clock=clock)
    yield cache
    cache.close()


def served(found: Hit | None) -> str:
    return "" if found is None else found.tier


# cases: R59
def test_a_repeated_request_gets_the_very_stream_of_its_answer(cache: AnswerCache, clock: Clock) -> None:
    entry_id = keep(cache, SKY, sampling=COLD)
    clock.now += 90

    found = hit(cache, SKY, sampling=COLD)

    assert found is not None
    assert found.events == make_events()
    assert (found.tier, found.similarity, found.age_s, found.entry_id) == ("exact", 1.0, 90.0, entry_id)
    assert found.seconds_saved == 2.0


def test_the_first_paraphrase_hits_in_an_empty_history(cache: AnswerCache) -> None:
    keep(cache, SKY)

    found = hit(cache, SKY_TOO, at(0.97))

    assert found is not None
    assert found.tier == "semantic"
    assert found.similarity == pytest.approx(0.97, abs=1e-5)
    assert found.probability > 0.97


def test_the_same_words_need_no_vector(cache: AnswerCache) -> None:
    keep(cache, SKY)

    recalled = cache.recall(make_key("Why is the sky  blue?"), [WHO])

    assert recalled.hit is not None
    assert recalled.hit.tier == "semantic"


# cases: R64
@pytest.mark.parametrize("text", ["What is 17 * 23 in all?", "天空为什么是蓝色的？", "why is it so? " * 90])
def test_what_is_not_compared_is_given_again_to_the_same_words_alone(cache: AnswerCache, text: str) -> None:
    cache.store(make_key(text), None, make_answer())
    other = text.replace("17", "18").replace("蓝", "红").replace("is it so", "was it so", 1)

    assert cache.recall(make_key(text), [WHO]).hit is not None
    assert cache.foresee(make_key(text), [WHO]).info is not None
    assert cache.recall(make_key(other), [WHO], is_embedded=True) == Recalled()
    assert look(cache, make_key(other), at()) == Found()
    assert cache.foresee(make_key(other), [WHO], at()).info is None


def test_an_empty_partition_asks_for_no_vector(cache: AnswerCache) -> None:
    keep(cache, SKY)

    assert not cache.recall(make_key(SKY_TOO, tenant="other"), [WHO]).is_near
    assert cache.recall(make_key(SKY_TOO), [WHO]).is_near


def test_words_that_rule_every_kept_prompt_out_ask_for_no_vector(cache: AnswerCache) -> None:
    keep(cache, SKY)

    assert not cache.recall(make_key("How do I bake bread at home?"), [WHO]).is_near
    assert not cache.recall(make_key("Why is the sky not blue?"), [WHO]).is_near


def test_distant_and_vetoed_prompts_miss(cache: AnswerCache) -> None:
    keep(cache, SKY)

    assert hit(cache, "What makes bread rise in the oven?", at(seed=1)) is None
    assert hit(cache, "Why is the sky not blue?", at(0.99)) is None
    assert hit(cache, "Why is the sea blue?", at(0.99)) is None


# cases: R50
def test_twenty_unrelated_questions_hit_nothing(cache: AnswerCache) -> None:
    things = (
        "bread snow iron honey glass paper salt wool coal milk silk rope sand wax tin oak clay ice oil tea"
    )
    for number, thing in enumerate(things.split()):
        text = f"How do people make {thing} at home?"
        assert hit(cache, text, at(0.9, seed=0) if number else at()) is None
        keep(cache, text, at(0.9, seed=0) if number else at())


# cases: R53
def test_tenants_and_embedders_share_nothing(cache: AnswerCache) -> None:
    keep(cache, SKY, tenant="one", sampling=COLD)

    assert served(hit(cache, SKY, tenant="one", sampling=COLD)) == "exact"
    assert hit(cache, SKY, tenant="two", sampling=COLD) is None
    assert hit(cache, SKY) is None
    assert served(hit(cache, SKY_TOO, at(0.99), tenant="one")) == "semantic"
    assert hit(cache, SKY_TOO, at(0.99, fingerprint="another"), tenant="one") is None


def test_vectors_of_different_embedders_are_never_compared(cache: AnswerCache) -> None:
    keep(cache, SKY, at(fingerprint="another"))

    assert cache.similar(make_key(SKY_TOO), at(), [WHO]) == Found()
    assert cache.similar(make_key(SKY_TOO), at(fingerprint="another"), [WHO]).near is not None


def test_what_a_veto_forbids_is_not_even_compared(cache: AnswerCache) -> None:
    keep(cache, SKY)

    assert cache.similar(make_key("Why is the sky not blue?"), at(0.99), [WHO]) == Found()


def test_the_likeliest_is_given_and_not_the_nearest(cache: AnswerCache) -> None:
    nearest = keep(cache, SKY, at(0.99))
    for _ in range(3):
        near = look(cache, make_key(SKY_TOO), fresh=True).near
        cache.store(make_key("continue"), None, make_answer("42 green cows."), near=near)
    likeliest = keep(cache, "Tell me why the sky is blue.", at(0.98))

    near = look(cache, make_key(SKY_TOO), fresh=True).near

    assert near is not None
    assert near.entry_id == likeliest != nearest


def test_of_many_kept_prompts_the_vector_says_which_is_near(
    cache: AnswerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(cache, SKY)
    keep(cache, "How do magnets work?", at(seed=1))
    bread = make_key("How do I bake bread at home?")
    assert not cache.recall(bread, [WHO]).is_near

    monkeypatch.setattr(answers, "FEW", 1)

    assert cache.recall(bread, [WHO]).is_near


def test_only_answers_of_those_who_may_answer_are_given(cache: AnswerCache) -> None:
    keep(cache, SKY, sampling=COLD)

    for key in (make_key(SKY, sampling=COLD), make_key(SKY_TOO)):
        assert look(cache, key, at(0.99), ["pool:large"]).hit is None
        assert look(cache, key, at(0.99), []).hit is None
        assert look(cache, key, at(0.99), ["pool:large", WHO]).hit is not None


# cases: R57
@pytest.mark.parametrize(
    ("events", "why"),
    [
        (make_events(reason="length"), "cut"),
        (make_events()[:-1], "not complete"),
        (make_events()[1:], "not complete"),
        ((), "not complete"),
        ((*make_events()[:2], Notice("continued", "Another went on."), *make_events()[2:]), "one piece"),
        ((*make_events()[:2], Notice("truncated", "A filter."), *make_events()[2:]), "one piece"),
        (make_events("I'm sorry, but I can't help with that."), "refuses"),
        (make_events("…"), "nothing"),
        ((*make_events()[:1], ToolCallDelta(0, "1", "f"), *make_events()[1:]), "tools"),
    ],
)
def test_what_is_not_a_whole_answer_is_not_kept(cache: AnswerCache, events, why: str) -> None:  # type: ignore[no-untyped-def]
    from edgecloud.cache.records import Answer

    entry_id, reason = cache.store(make_key(SKY, sampling=COLD), at(), Answer(events, WHO))

    assert entry_id is None
    assert why in reason
    assert hit(cache, SKY, sampling=COLD) is None


# cases: R57
def test_an_answer_longer_than_was_asked_for_is_not_given(cache: AnswerCache) -> None:
    keep(cache, SKY, sampling=COLD)

    assert hit(cache, SKY, sampling=COLD, max_tokens=1) is None
    assert hit(cache, SKY_TOO, at(0.99), max_tokens=1) is None
    assert served(hit(cache, SKY, sampling=COLD, max_tokens=2)) == "exact"


# cases: R55, R61, R62
def test_a_hit_makes_nothing_younger(cache: AnswerCache, clock: Clock) -> None:
    keep(cache, SKY, sampling=COLD)
    lifetime = make_key(SKY).lifetime_s
    clock.now += lifetime - 1
    assert served(hit(cache, SKY, sampling=COLD)) == "exact"
    assert served(hit(cache, SKY_TOO, at(0.99))) == "semantic"
    clock.now += 1

    assert hit(cache, SKY, sampling=COLD) is None
    assert hit(cache, SKY_TOO, at(0.99)) is None


def test_who_wants_none_older_than_so_much_gets_none(cache: AnswerCache, clock: Clock) -> None:
    keep(cache, SKY, sampling=COLD)
    clock.now += 90

    assert hit(cache, SKY, sampling=COLD, max_age_s=89.0) is None
    assert hit(cache, SKY_TOO, at(0.99), max_age_s=89.0) is None
    assert served(hit(cache, SKY, sampling=COLD, max_age_s=90.0)) == "exact"


def test_under_a_clock_that_was_set_back_an_answer_is_new(cache: AnswerCache, clock: Clock) -> None:
    keep(cache, SKY, sampling=COLD)
    clock.now -= 100

    found = hit(cache, SKY, sampling=COLD)

    assert found is not None
    assert found.age_s == 0


def test_a_fresh_answer_takes_the_old_one_s_place(cache: AnswerCache) -> None:
    keep(cache, SKY, sampling=COLD)
    key = make_key(SKY, sampling=COLD)
    found = look(cache, key, fresh=True)
    assert found.hit is None

    cache.store(key, at(), make_answer("Rayleigh scattering."), near=found.near)

    again = hit(cache, SKY, sampling=COLD)
    assert again is not None
    assert again.events == make_events("Rayleigh scattering.")
    assert len(cache.entries()) == 1


def test_a_refused_answer_goes_however_long_it_was_and_others_stay(cache: AnswerCache) -> None:
    keep(cache, SKY, sampling=COLD)
    similar = keep(cache, SKY_TOO, at(0.9))
    key = make_key(SKY, sampling=COLD, max_tokens=1)

    assert cache.refuse(key, ["somebody:else"]) == 0
    assert cache.refuse(key, [WHO]) == 1

    assert [entry.id for entry in cache.entries()] == [similar]


# cases: R58, R62
def test_what_a_person_calls_wrong_is_not_given_again(cache: AnswerCache) -> None:
    entry_id = keep(cache, SKY, sampling=COLD)
    assert served(hit(cache, SKY_TOO, at(0.99))) == "semantic"

    assert cache.blame(entry_id)

    assert hit(cache, SKY, sampling=COLD) is None
    assert hit(cache, SKY_TOO, at(0.99)) is None
    assert cache.entries()[0].blocked
    assert cache.stats().blamed == 1
    assert not cache.blame("ans-unknown")


def test_a_refused_hit_that_proves_wrong_is_trusted_less(cache: AnswerCache) -> None:
    keep(cache, SKY)
    trust = []
    for _ in range(3):
        near = look(cache, make_key(SKY_TOO), at(0.97), fresh=True).near
        assert near is not None
        trust.append((near.withheld, near.probability))
        # Of a prompt that is not kept itself, or it would be the nearest.
        cache.store(make_key("continue"), None, make_answer("42 green cows."), near=near)

    assert trust[0][0]
    assert not trust[2][0]
    assert trust[0][1] > trust[1][1] > trust[2][1]
    assert hit(cache, SKY_TOO, at(0.97)) is None


def test_each_scope_and_each_embedder_has_an_experience_of_its_own() -> None:
    domains = [Domain(scope, space, known=True) for scope in ("one", "two") for space in ("minilm", "other")]
    assert len({domain.digest for domain in domains}) == 4


def test_an_audited_hit_is_computed_and_counted(path: Path) -> None:
    cache = make_cache(path, audit=True)
    keep(cache, SKY)

    found = look(cache, make_key(SKY_TOO), at(0.97))
    assert found.hit is None
    assert found.near is not None
    assert found.near.withheld
    assert cache.similar(make_key(SKY_TOO), at(0.97), [WHO], may_audit=False).hit is not None
    cache.store(make_key(SKY_TOO), at(0.97), make_answer("Light scatters."), near=found.near)

    assert (cache.stats().audits, cache.stats().audits_wrong) == (1, 0)
    cache.close()


def test_deleting_a_chat_deletes_what_only_it_owns(cache: AnswerCache, path: Path) -> None:
    secret = "Why does zanzibarwort smell of rain?"
    cache.store(make_key(secret), at(), make_answer("Because of petrichorium.", chat_id="chat-1"))
    cache.store(make_key(SKY), at(seed=1), make_answer(chat_id="chat-2"))

    removal = cache.delete_chats(["chat-1"])

    assert (removal.num_answers, removal.purged) == (1, True)
    assert [entry.prompt for entry in cache.entries()] == [SKY]
    everything = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"zanzibarwort" not in everything
    assert SKY.encode() in everything


def test_whoever_asks_has_numbers_of_their_own(cache: AnswerCache) -> None:
    before = cache.stats()
    assert (before.scopes, 0.9 <= before.threshold < 1.0) == ((), True), "what holds before there is traffic"

    asked = ask("How do magnets work, in short?", tenant="4f2a")
    cache.similar(key_of(asked), at(0.9), (WHO,))

    stats = cache.stats()
    assert [each.scope for each in stats.scopes] == ["key:4f2a"]
    assert 0.9 <= stats.scopes[0].threshold < 1.0
    assert stats.threshold == before.threshold


# cases: R62
def test_forgetting_and_clearing(cache: AnswerCache) -> None:
    untouched = cache.stats()
    entry_id = keep(cache, SKY, sampling=COLD)
    keep(cache, "How do magnets work, in short?", at(seed=1))

    assert cache.resolve(entry_id[4:12])[0].id == entry_id
    assert cache.resolve(entry_id[4:6]) == []
    assert cache.forget(entry_id).num_answers == 1
    assert hit(cache, SKY, sampling=COLD) is None
    assert hit(cache, "Please tell me how magnets work, in short.", at(0.99, seed=1)) is not None
    assert cache.stats() != untouched
    assert cache.clear().num_answers == 1
    assert cache.stats() == untouched


# cases: R65
def test_the_size_stays_within_its_limit_and_what_pays_stays(path: Path, clock: Clock) -> None:
    cache = make_cache(path, clock=clock, limit_bytes=100_000)
    keep(cache, SKY)
    for _ in range(20):
        hit(cache, SKY)
    for number in range(400):
        text = f"What is said of village number {number} in the old book?"
        cache.store(make_key(text), at(seed=number), make_answer(f"Of {number}, little."))

    assert cache.stats().bytes < 1.3 * 100_000
    assert served(hit(cache, SKY)) == "semantic"
    small = path.stat().st_size
    for number in range(400, 800):
        text = f"What is said of village number {number} in the old book?"
        cache.store(make_key(text), at(seed=number), make_answer(f"Of {number}, little."))
    assert path.stat().st_size < 1.5 * small
    cache.close()


def test_two_processes_see_each_other_s_answers(path: Path, cache: AnswerCache) -> None:
    other = make_cache(path)
    keep(cache, SKY)
    assert served(hit(other, SKY_TOO, at(0.98))) == "semantic"
    entry_id = keep(other, "How do magnets work?", at(seed=5))
    assert served(hit(cache, "How do magnets work, please?", at(0.99, seed=5))) == "semantic"
    other.forget(entry_id)
    assert hit(cache, "How do magnets work, please?", at(0.99, seed=5)) is None
    other.close()


def test_what_another_process_deleted_hides_nothing(path: Path, cache: AnswerCache) -> None:
    other = make_cache(path)
    for number in range(80):
        text = f"How long does magnet number {number} work?"
        other.store(make_key(text), at(0.999, seed=3), make_answer(chat_id="chat-1"))
    keep(cache, SKY, at(0.9, seed=3))
    hit(cache, SKY_TOO, at(seed=3))

    other.delete_chats(["chat-1"])

    found = look(cache, make_key(SKY_TOO), at(seed=3))
    assert found.hit is not None or found.near is not None
    other.close()


def test_a_damaged_file_is_made_anew(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)
    cache = make_cache(path)
    keep(cache, SKY)
    assert served(hit(cache, SKY)) == "semantic"
    cache.close()


def test_a_locked_file_is_one_storage_error(path: Path, cache: AnswerCache, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    keep(cache, SKY)
    cache._connection.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StorageError, match="locked"):
        hit(cache, SKY)
    other.close()
    assert served(hit(cache, SKY)) == "semantic"
