"""What the text alone says of a question, and what is believed of an engine that nobody has outcomes for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.router.facts import Structure
from edgecloud.router.priors import PriorQuality, difficulty, parameters_of
from edgecloud.router.structure import is_approval, measure, question
from edgecloud.router.wording import wording
from edgecloud.types import Message

from .worlds import make_facts, make_hosted, make_local

PLAN = (
    "1. Shard the orders table by tenant\n2. Backfill with dual writes\n3. Analyse the trade-offs of cut-over"
)
ASKED = "Design a zero-downtime migration of our orders database and compare the trade-offs."


def hard(text: str) -> float:
    return difficulty(measure(text))


def chat(*turns: str) -> list[Message]:
    """Turns of user and assistant, the user's first."""
    return [Message("user" if index % 2 == 0 else "assistant", turn) for index, turn in enumerate(turns)]


# cases: R41
@pytest.mark.parametrize("yes", ["yes", "Yes, go ahead!", "ok, continue", "好的，继续", "", "y", "LGTM"])
def test_an_approval_is_as_hard_as_what_it_approves(yes: str) -> None:
    wanted = question(chat(ASKED, PLAN, yes))

    assert wanted == f"{ASKED}\n{PLAN}"
    assert hard(wanted) > hard(ASKED) > hard(yes)
    assert question(chat(ASKED, PLAN, yes, "Done with 1.", "go on")) == f"{ASKED}\nDone with 1."


@pytest.mark.parametrize(
    "text", ["no", "yes, but in French", "What next?", "then explain it", "可以用Go写吗"]
)
def test_what_says_more_than_yes_is_a_question_of_its_own(text: str) -> None:
    assert not is_approval(text)
    assert question(chat(ASKED, PLAN, text)) == text


def test_a_first_turn_is_its_own_question_whatever_it_says() -> None:
    assert question([Message("system", "Be brief."), Message("user", ASKED)]) == ASKED
    tools = [Message("user", ASKED), Message("assistant", "I look it up."), Message("tool", "42")]
    assert question(tools) == ASKED
    assert question([Message("user", "yes")]) == "yes"
    assert question([Message("system", "Be brief.")]) == "Be brief."
    assert question([]) == ""


# cases: R42
@pytest.mark.parametrize(
    "probe",
    [
        "Which isomer dominates when 2-methylpropene reacts with HBr in the presence of peroxides, and why?",
        "Prove that the square root of 2 is irrational.",
        "Is a contract signed under duress voidable, and who bears liability for negligent misstatement?",
        "A patient presents with these symptoms; give the differential diagnosis and the dosage.",
        "Derive the entropy of an ideal gas from the quantum partition function.",
        "证明根号2是无理数，并比较三种证明方法",
        "这份合同中的违约条款在诉讼中是否有效？请分析法律风险",
        ASKED,
    ],
)
def test_proofs_chemistry_and_law_are_not_simple(probe: str) -> None:
    trivial = [
        "hi",
        "What is the capital of France?",
        "Translate good morning to French",
        "今天天气怎么样",
        "Tell me a joke about cats",
    ]
    assert all(hard(probe) > hard(other) + 0.2 for other in trivial)


def test_empty_lines_are_not_looked_through_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgecloud.router.structure.MEASURED_CHARS", 1_000_000)

    assert measure("\n" * 100_000).num_lines == 100_001  # which would take minutes


def test_a_longer_question_is_harder() -> None:
    assert hard("why " * 10) < hard("why " * 100) < hard("why " * 1000)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("one two three", "num_words", 3),
        ("今天天气怎么样啊", "num_words", 5),
        ("Pick one:\nA. red\nB. blue\nC) green", "options", 3),
        ("Which is NOT true? 哪个不对", "negations", 2),
        ("def f(x):\n    return x == 1", "code", 3),
        ("what? really？", "questions", 2),
        ("Is 3 + 4 = 7 by the theorem", "maths", 3),
        ("Привет, как дела", "language", "other"),
        ("今天 good 天气怎么样", "language", "zh"),
        ("good 天 morning to you all", "language", "en"),
        ("a\nb", "num_lines", 2),
    ],
)
def test_structure_is_counted(text: str, field: str, value: object) -> None:
    assert getattr(measure(text), field) == value


@given(st.text(max_size=500))
def test_any_text_has_a_structure_with_shares_that_are_shares(text: str) -> None:
    structure = measure(text)

    assert all(0 <= share <= 1 for share in (structure.digits, structure.capitals, structure.symbols))
    assert difficulty(structure) >= difficulty(Structure())


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("SmolLM2-135M-Instruct", 0.135),
        ("Qwen/Qwen2.5-32B-Instruct", 32.0),
        ("mixtral-8x7b", 56.0),
        ("gemma-3-270m-it", 0.27),
        ("llama-3.1-8b", 8.0),
        ("qwen2.5:7b", 7.0),
        ("Qwen2.5-0.5B-Instruct-Q4_K_M.gguf", 0.5),
        ("mistral_7B_v0.3", 7.0),
        ("Qwen3-30B-A3B", 30.0),
        ("gpt-oss-120b", 120.0),
        ("gpt-4o", None),
        ("phi-4", None),
        ("x-1b2c", None),
    ],
)
def test_a_models_size_is_read_from_its_name(model: str, billions: float | None) -> None:
    assert parameters_of(model) == billions


def test_a_larger_model_is_better_and_gains_more_on_harder_questions() -> None:
    small, large = make_local(model="a-1b"), make_hosted(model="b-70b")

    def chances(words: int) -> tuple[float, float]:
        facts = make_facts(structure=Structure(num_words=words))
        found = PriorQuality().predict(facts, [small, large])
        return found["laptop"].mean, found["cloud"].mean

    easy, long = chances(5), chances(300)
    assert easy[0] > long[0]
    assert all(strong > weak for weak, strong in (easy, long))
    assert long[1] - long[0] > easy[1] - easy[0]


def test_what_is_not_known_is_wide() -> None:
    views = [
        make_hosted("known", model="a-70b"),
        make_hosted("unknown", model="who-knows"),
        make_hosted("told", model="who-knows", parameters=70.0),
    ]
    known, unknown, told = PriorQuality().predict(make_facts(), views).values()

    assert unknown.high - unknown.low > known.high - known.low
    assert told == known
    assert known.low < known.mean < known.high
    assert known.source == "a prior for 70 billion parameters"
    foreign = make_facts(structure=Structure(language="other"))
    blind = PriorQuality().predict(foreign, views)["known"]
    assert blind.high - blind.low > known.high - known.low
    assert PriorQuality().neighbours(make_facts()) == ()


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("Which is it?\nA. 12\nB. a word\nC. 3.5\nD. 70 kg\nAnswer:", "numeric_options", 0.75),
        ("Which is it?\nA. 12\nB. a word\nAnswer:", "option_chars", 4.0),
        ("Which is it?\nA. 12\nB. a word\nAnswer:", "stem_chars", 13),
        ("No option here.", "stem_chars", 15),
        ("Which is it?\nA. yes\nB. no", "asks", True),
        ("The sky is\nA. blue.\nB. red.", "states", False),
        ("Suppose that x is 2.", "supposes", True),
        ("why is the sky blue", "asks_how", True),
        ("The capital of ____ is", "blanks", 1),
        ("1. one\n2. all of the above", "all_or_none", 1),
        ("In May Ada met Charles.", "names", 3),
        ("one one two", "distinct_words", 2 / 3),
    ],
)
def test_the_form_is_told(text: str, field: str, value: object) -> None:
    assert getattr(measure(text).form, field) == pytest.approx(value)


def test_words_are_numbers_that_case_and_repetition_do_not_change() -> None:
    assert wording("Red Apples, red apples") == wording("red apples red apples")
    assert len(wording("red apples")) == 3, "two words and a pair"
    assert set(wording("red apples")).isdisjoint(wording("green pears"))
    assert wording("") == ()
