"""Files that go along with a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecloud.app.tui.state.attachments import MAX_IMAGE_BYTES, as_mentions, gather, shown
from edgecloud.errors import BadRequest

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


def test_a_mentioned_file_is_sent_under_its_name_and_shown_by_it(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("one\ntwo\n")

    prompt = gather(f"what is in @{path}?")

    assert prompt.text == f"what is in @{path}?\n\n--- notes.txt ---\none\ntwo"
    assert shown(prompt.text) == (f"what is in @{path}?", [("notes.txt", 2)])


def test_an_at_sign_that_names_no_file_is_a_word() -> None:
    typed = 'ask @alice about a@b.example, @types/node, @app.get("/x.py") and @pytest.fixture'
    assert gather(typed).text == typed


@pytest.mark.parametrize(
    "name", ["nosuch.txt", "./nosuch", "/nowhere/at/all", "~/nosuch", "~nouser/nosuch", "src/nosuch.PY"]
)
def test_what_is_written_as_a_file_and_is_none_is_said_before_anything_is_sent(name: str) -> None:
    with pytest.raises(BadRequest, match=f"There is no file {name}: check its name"):
        gather(f"look at @{name}, please")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is a folder: name a file in it"):
        gather(f"look at @{tmp_path}")


def test_a_name_with_spaces_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "my notes.txt"
    path.write_text("x")

    assert gather(f'see @"{path}"').text.endswith("--- my notes.txt ---\nx")


def test_an_image_becomes_a_data_uri(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)

    assert gather(f"@{path} what is this").images[0].startswith("data:image/png;base64,iVBOR")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("no.png", None, "There is no file"),
        ("a.heic", b"\0\0\0 ftypheic", "a.heic is no PNG, JPEG, GIF or WebP"),
        ("a.png", b"a text", "a.png is no PNG, JPEG, GIF or WebP"),
        ("a.png", PNG + b"\0" * MAX_IMAGE_BYTES, "a.png is larger than 8 MiB"),
    ],
)
def test_an_image_that_cannot_be_sent_is_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(BadRequest, match=said):
        gather(f"what is @{path}?")


def test_a_drawing_that_is_text_goes_along_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_text("<svg/>")

    assert "<svg/>" in gather(f"@{path}").text


def test_the_paths_of_all_files_go_along_for_the_rules_of_privacy(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")

    assert gather(f"@{tmp_path}/a.txt @{tmp_path}/b.txt").files == (f"{tmp_path}/a.txt", f"{tmp_path}/b.txt")


def test_a_link_goes_along_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "a.txt").write_text("x")
    (tmp_path / "a.txt").symlink_to("clients/a.txt")

    assert gather(f"@{tmp_path}/a.txt").files == (f"{tmp_path}/a.txt", f"{tmp_path}/clients/a.txt")


def test_a_file_that_is_no_text_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"\0\xff\xfe\x00")

    with pytest.raises(BadRequest, match=r"not text|not UTF-8|middle of a character"):
        gather(f"@{path}")


def test_a_dropped_path_becomes_a_mention(tmp_path: Path) -> None:
    path = tmp_path / "my notes.txt"
    path.write_text("x")

    assert as_mentions(f"'{path}' ") == f'@"{path}" '
    assert as_mentions("/no/such/file") is None
    assert as_mentions("just words") is None
    assert as_mentions("it's") is None


def test_lines_that_look_like_a_file_stay_part_of_the_prompt() -> None:
    assert shown("a diff\n--- a.txt ---\nx") == ("a diff\n--- a.txt ---\nx", [])
