"""What keeps a request on this machine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.config.loading import load
from edgecloud.errors import ConfigError
from edgecloud.router import privacy
from edgecloud.router.checks import is_card, is_chinese_id, is_iban
from edgecloud.router.facts import Privacy
from edgecloud.router.globs import is_meant
from edgecloud.router.privacy import judge
from edgecloud.settings import PrivacyRule, PrivacySettings
from edgecloud.types import ChatRequest, Message, ToolCall


def ask(text: str, *more: Message, **fields: Any) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text), *more), **fields)


def labels(text: str, **settings: Any) -> tuple[str, ...]:
    return judge(ask(text), PrivacySettings(**{"exemplars": False, **settings})).labels


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Write to maud70@gmail.com, please", "pii:email"),
        ("发邮件到 wang.wei@qq.com", "pii:email"),
        ("card 4111 1111 1111 1111, expires soon", "pii:card"),
        ("pay into DE89 3704 0044 0532 0130 00", "pii:iban"),
        ("to account 86940970", "pii:account"),
        ("卡号：6222021234567890123", "pii:account"),
        ("SSN 117 44 7426 is pending", "pii:id"),
        ("我的身份证号是11010519491231002X", "pii:id"),
        ("passport number X1234567", "pii:id"),
        ("call me at 555-0143-22 tonight", "pii:phone"),
        ("Tel: +49 30 901820", "pii:phone"),
        ("请打我手机13812345678", "pii:phone"),
        ("she lives at 221 Baker Street", "pii:address"),
        ("我住在朝阳区建国路88号", "pii:address"),
        ("DOB: 1984-02-03", "pii:birth"),
        ("出生日期：1984年", "pii:birth"),
        ("from 0c:80:33:28:5d:47", "pii:device"),
        ("Assets for 140.252.141.168 have arrived", "pii:device"),
        ("he was diagnosed with PCOS", "pii:health"),
        ("患者的诊断如下", "pii:health"),
        ("Dear Rene, your payment is overdue.", "pii:person"),
        ("尊敬的王女士，您好", "pii:person"),
        ("password: 5cFxfhNq", "pii:secret"),
        ("密码是Abc12345", "pii:secret"),
        ("key AKIAIOSFODNN7EXAMPLE", "pii:secret"),
        ("use sk-proj-abc123def456ghi789jkl0", "pii:secret"),
        ("postgres://root:hunter22@db/prod", "pii:secret"),
        ("-----BEGIN RSA PRIVATE KEY-----", "pii:secret"),
    ],
)
def test_personal_data_and_secrets_are_found(text: str, label: str) -> None:
    assert labels(text) == (label,)
    assert labels(text, patterns=False) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What is the capital of France?",
        "A number with sixteen digits: 1234567890123456",
        "pi is 3.14159265358979323846",
        "Run it on 127.0.0.1 or 192.168.1.10, version 1.2.3.4, or ask 8.8.8.8 by 239.1.1.1",
        "mail user@example.com",
        "How do I reset my password: the page is gone",
        "password: str = None",
        "Dear Sir or Madam, I write to apply",
        "Hello World, said the program.",
        "In 2019-05-11 10:30:00 it was 2019",
        "a[0:10:20:30:40:50]",
        "The war of 1939-1945 and 1914-1918",
        "https://example.org/a:b",
        "git clone git@github.com:a/b.git",
        "用Python写一个快速排序",
        "ISBN 978-3-16-148410-0",
    ],
)
def test_what_only_looks_like_it_is_not(text: str) -> None:
    assert labels(text) == ()


def test_check_digits_are_checked() -> None:
    assert is_card("4111 1111 1111 1111")
    assert not is_card("4111 1111 1111 1112")
    assert not is_card("0000000000000000")
    assert is_iban("GB82 WEST 1234 5698 7654 32")
    assert not is_iban("GB82 WEST 1234 5698 7654 33")
    assert is_chinese_id("11010519491231002X")
    assert not is_chinese_id("110105194912310021")


@given(st.text(max_size=300), st.sampled_from(["bob@acme.io", "4111111111111111", "AKIAIOSFODNN7EXAMPLE"]))
def test_what_is_found_alone_is_found_between_other_words(around: str, secret: str) -> None:
    assert judge(ask(f"{around}\n{secret}\n{around}"), PrivacySettings()).local_only


@given(st.text(max_size=400), st.lists(st.text(max_size=10), max_size=3))
def test_no_text_is_too_strange_to_be_judged(text: str, paths: list[str]) -> None:
    found = judge(ask(text), PrivacySettings(paths=("~/x/**", "*.key")), paths=paths)

    assert "unjudged" not in found.labels
    assert found.local_only == bool(found.reasons)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Summarise the minutes of our board meeting", "like:internal_document"),
        ("审查我们公司代码库中的这个函数", "like:proprietary_code"),
        ("Review our employee salary spreadsheet and find outliers", "like:personal_records"),
        ("分析我们未发表的研究论文草稿", "like:trade_secret"),
        ("Process this locally, nothing may leave our network", "like:keep_here"),
    ],
)
def test_what_reads_private_is(text: str, label: str) -> None:
    assert judge(ask(text), PrivacySettings()).labels == (label,)
    assert judge(ask(text), PrivacySettings(exemplars=False)).labels == ()


@pytest.mark.parametrize(
    "text",
    [
        "Explain how quicksort works",
        "Write a Python function that reverses a list",
        "Translate 'our company is growing' into French",
        "帮我写一首关于春天的诗",
        "How does photosynthesis work?",
        "yes",
        "confidential",
        "机密",
        "Design a database schema for a bookshop",
    ],
)
def test_what_does_not_read_private_is_not(text: str) -> None:
    assert judge(ask(text), PrivacySettings()) == Privacy()


def test_what_is_asked_at_the_end_of_a_long_text_counts() -> None:
    book = "It was the best of times, it was the worst of times. " * 100
    request = "Summarise the minutes of our board meeting and our confidential strategy."

    for text in (f"{book}\n{request * 8}", f"{request * 8}\n{book}"):
        assert judge(ask(text), PrivacySettings()).local_only
    assert judge(ask(book), PrivacySettings()) == Privacy()


def test_an_agents_instructions_do_not_read_private_but_hold_data_all_the_same() -> None:
    system = Message(
        "system", "You review our internal confidential proprietary source code for our company."
    )

    assert judge(ask("hi", system), PrivacySettings()).labels == ()
    assert judge(ask("hi", Message("system", "mail bob@acme.io")), PrivacySettings()).labels == ("pii:email",)


def test_every_text_of_a_request_is_looked_at() -> None:
    secret = "bob@acme.io"
    call = Message("assistant", tool_calls=(ToolCall("1", "send", f'{{"to": "{secret}"}}'),))
    elsewhere = [
        ask("hi", Message("tool", secret)),
        ask("hi", call),
        ask("hi", Message("assistant", "ok", reasoning=secret)),
        ChatRequest(prompt=f"to {secret}"),
    ]

    assert [judge(request, PrivacySettings()).labels for request in elsewhere] == [("pii:email",)] * 4


def test_rules_and_paths_of_ones_own_bind() -> None:
    settings = PrivacySettings(
        rules=(PrivacyRule(name="clients", pattern=r"(?i)\bacme\b"),), paths=("~/clients/", "*.env")
    )

    def found(text: str, *paths: str) -> tuple[str, ...]:
        return judge(ask(text), settings, paths=paths).labels

    assert found("What does ACME want?") == ("rule:clients",)
    assert found("academe") == ()
    assert found("what is this", "/home/me/clients/a/b.md") == ("path",)
    assert found("what is in ~/clients/notes.txt?") == ("path",)
    assert found("look at src/prod.env.") == ("path",)
    assert found("what is this", "/home/me/public.md") == ()


@pytest.mark.parametrize(
    ("glob", "path", "meant"),
    [
        ("*.key", "/a/b/c.key", True),
        ("*.key", "c.KEY", True),
        ("*.key", "c.key.txt", False),
        ("/srv/*/x", "/srv/a/x", True),
        ("/srv/*/x", "/srv/a/b/x", False),
        ("/srv/**/x", "/srv/x", True),
        ("/srv/**/x", "/srv/a/b/x", True),
        ("/srv/", "/srv/a/b", True),
        ("~/.ssh/**", "/" + "root/.ssh/id", True),
        ("~/.ssh/**", "~/.ssh/id", True),
        ("~/.ssh/**", "C:\\Users\\me\\.ssh\\id", True),
        ("~/.ssh/**", "/srv/.ssh/id", False),
        ("clients/", "/srv/clients/a/b", True),
        ("clients/*.md", "clients/a.md", True),
        ("clients/", "/srv/our_clients/a", False),
        ("a?c", "abc", True),
        ("a.c", "abc", False),
    ],
)
def test_a_glob_means_what_shells_mean(glob: str, path: str, meant: bool) -> None:
    assert is_meant(path, (glob,)) is meant


def test_home_is_wherever_it_is_and_where_its_links_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    monkeypatch.setenv("HOME", f"{tmp_path}/home")

    assert is_meant(f"{tmp_path}/home/clients/a.txt", ("~/clients/",))
    assert is_meant(f"{tmp_path}/real/clients/a.txt", ("~/clients/",))
    assert not is_meant(f"{tmp_path}/other/clients/a.txt", ("~/clients/",))
    monkeypatch.setenv("HOME", f"{tmp_path}/other")
    assert is_meant(f"{tmp_path}/other/clients/a.txt", ("~/clients/",))


def test_labels_may_be_let_go_one_by_one_or_by_family() -> None:
    text = "Dear Rene, write to bob@acme.io"

    assert labels(text) == ("pii:email", "pii:person")
    assert labels(text, ignore=("pii:email",)) == ("pii:person",)
    assert labels(text, ignore=("pii",)) == ()
    rule = PrivacyRule(name="pii", pattern="bob")
    assert labels(text, ignore=("pii", "rule"), rules=(rule,)) == ("rule:pii",)


# cases: R38
def test_a_chat_that_was_private_once_stays_so() -> None:
    settings = PrivacySettings()
    first = judge(ask("I am bob@acme.io"), settings)

    later = judge(ask("And what is the capital of France?"), settings, earlier=first)

    assert later.local_only
    assert later.labels == ("pii:email",)
    # Asked for once more, it has one more reason and none twice.
    again = judge(ask("bob@acme.io", private=True), settings, pinned=True, earlier=later)
    assert again.labels == ("pii:email", "asked", "pin")


def test_a_reason_never_holds_what_was_found() -> None:
    found = judge(ask("I am bob@acme.io, 4111111111111111"), PrivacySettings())

    assert len(found.reasons) == 2
    assert not any("bob" in reason.sentence or "4111" in reason.sentence for reason in found.reasons)


def test_a_prompt_of_token_ids_cannot_be_judged_and_stays() -> None:
    request = ChatRequest(prompt=(1, 2, 3))

    assert judge(request, PrivacySettings()).labels == ("unjudged",)
    assert judge(request, PrivacySettings(patterns=False, exemplars=False)) == Privacy()


def test_a_bug_in_judging_keeps_the_request_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(privacy, "kinds", broken)
    with caplog.at_level(logging.ERROR):
        found = judge(ask("a text that was never judged before"), PrivacySettings())

    assert found.labels == ("unjudged",)
    assert "could not be judged" in caplog.text


def test_a_text_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(privacy, "kinds", lambda text: seen.append(text) or iter(()))
    turns = [Message("user", f"turn {number} of a long chat") for number in range(20)]

    for count in range(1, 21):
        judge(ChatRequest(messages=tuple(turns[:count])), PrivacySettings())

    assert seen == [turn.content for turn in turns]


def test_only_the_latest_texts_are_remembered_and_none_as_text() -> None:
    memo = privacy._Memo(2)
    for number in range(5):
        memo.reasons(f"the secret number {number}", True, PrivacySettings())

    assert len(memo._kept) == 2
    assert "secret number" not in repr(memo._kept)


def test_the_same_text_is_judged_again_when_a_person_asks_it() -> None:
    text = "Review the source code from our internal proprietary repository"
    quoted = ChatRequest(messages=(Message("tool", text),))

    assert judge(quoted, PrivacySettings()) == Privacy()
    assert judge(ask(text), PrivacySettings()).labels == ("like:proprietary_code",)


def test_changed_rules_are_asked_again() -> None:
    text = "a text about zebras"

    assert labels(text) == ()
    assert labels(text, rules=(PrivacyRule(name="zebra", pattern="zebra"),)) == ("rule:zebra",)


def test_a_rule_that_is_no_regular_expression_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[[privacy.rules]]\nname = "x"\npattern = "a("\n')
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(path))

    with pytest.raises(ConfigError, match=r"privacy\.rules\.0\.pattern must be a regular expression "):
        load()
