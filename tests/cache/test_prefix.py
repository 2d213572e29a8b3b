"""Saved states on disk: found by their beginning, whole or not at all, bounded, and gone with their chat."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.cache import prefix
from edgecloud.cache.prefix import PrefixStore
from edgecloud.cache.prefix_key import StateKind, as_tokens, chain, is_worth_reading, is_worth_saving
from edgecloud.cache.seal import encrypted
from edgecloud.errors import StorageError

KIND = StateKind("toy", "0" * 32, "build 1", "f16")
MakeStore = Callable[..., PrefixStore]


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[MakeStore]:
    stores: list[PrefixStore] = []

    def make(**options: Any) -> PrefixStore:
        stores.append(PrefixStore(tmp_path / "prefixes.db", **{"limit_bytes": 1 << 30} | options))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "CHUNK_BYTES", 1000)


def state(size: int = 2500, fill: int = 7) -> bytearray:
    return bytearray((fill + at * at) % 256 for at in range(size))


def prompt(length: int, first: int = 1) -> list[int]:
    return [first, *range(2, length + 1)]


def found(store: PrefixStore, tokens: list[int], kind: StateKind = KIND) -> tuple[int, bytearray] | None:
    """What a lookup gives: the number of shared tokens, and the state."""
    match = store.find(kind, tokens)
    saved = store.read(kind, match.number) if match is not None else None
    return (match.num_shared, saved[1]) if match is not None and saved is not None else None


def test_the_state_that_shares_most_is_found_to_the_token(make_store: MakeStore) -> None:
    store = make_store()
    store.save(KIND, prompt(100) + [8] * 20, state(fill=1), "chat-a")
    store.save(KIND, prompt(140) + [9] * 60, state(2600, fill=2), "chat-b")

    assert found(store, prompt(300)) == (140, state(2600, fill=2))
    assert found(store, prompt(90)) == (90, state(fill=1))
    assert found(store, prompt(300, first=5)) is None


def test_nothing_that_shares_less_than_a_block_is_found(make_store: MakeStore) -> None:
    store = make_store()
    store.save(KIND, prompt(200), state(), "chat-a")

    assert found(store, prompt(64)) is not None
    assert found(store, prompt(63)) is None
    assert found(store, [*prompt(63), 9, 9]) is None


@pytest.mark.parametrize("field", ["fingerprint", "build", "kv_type", "adapter"])
def test_another_file_build_kv_type_or_adapter_shares_nothing(make_store: MakeStore, field: str) -> None:
    # cases: E26
    store = make_store()
    store.save(KIND, prompt(200), state(), "chat-a")

    assert found(store, prompt(200)) is not None
    assert found(store, prompt(200), KIND._replace(**{field: "other"})) is None
    assert found(store, prompt(200), KIND._replace(model="the same file under another name")) is not None


@given(st.lists(st.integers(0, 3), max_size=400), st.lists(st.integers(0, 3), max_size=400))
def test_hashes_agree_as_far_as_whole_blocks_do(a: list[int], b: list[int]) -> None:
    one, other = chain(b"seed", as_tokens(a)), chain(b"seed", as_tokens(b))
    same = 0
    while 64 * (same + 1) <= min(len(a), len(b)) and a[: 64 * (same + 1)] == b[: 64 * (same + 1)]:
        same += 1

    assert one[:same] == other[:same]
    assert not set(one[same:]) & set(other[same:])


def test_what_is_worth_saving_spares_more_than_it_costs() -> None:
    # 2,000 tokens of the starter: 46 MB, 8 seconds of a slow processor, a third of one of a fast GPU.
    assert is_worth_saving(2000, 46_000_000, 0.004, 0)
    assert not is_worth_saving(2000, 46_000_000, 0.00015, 0)
    # A short tail of a long state is computed again, unless it is used again and again.
    assert not is_worth_saving(200, 46_000_000, 0.004, 0)
    assert is_worth_saving(200, 46_000_000, 0.004, 1)
    assert not is_worth_saving(100, 2_000_000, 0.004, 100)
    assert is_worth_reading(100, 46_000_000, 0.004)
    assert not is_worth_reading(50, 46_000_000, 0.004)


def test_a_prefix_that_is_saved_already_is_not_saved_again(make_store: MakeStore) -> None:
    store = make_store()
    assert store.save(KIND, prompt(2000), state(), "chat-a", token_s=0.004) is not None
    assert store.save(KIND, [*prompt(2000), 9], state(), "chat-b", token_s=0.004) is None
    assert store.save(KIND, [*prompt(2000), *[9] * 1000], state(), "chat-b", token_s=0.004) is not None


def test_a_longer_state_takes_the_place_of_what_it_contains_and_of_its_chat_s_older_one(
    make_store: MakeStore,
) -> None:
    store = make_store()
    store.save(KIND, prompt(100), state(), "chat-a")
    store.save(KIND, prompt(100, first=3), state(), "chat-b")
    newer = store.save(KIND, prompt(200), state(), "chat-b")

    assert [entry.id for entry in store.entries()] == [newer]


# --------------------------------------------------------------------------------------------------- damage


def damage(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chunks SET data = zeroblob(length(data)) WHERE position = 1",
        "UPDATE chunks SET position = 3 WHERE position = 1",
        "DELETE FROM chunks WHERE position = 2",
        "UPDATE chunks SET data = substr(data, 2) WHERE position = 2",
        "UPDATE chunks SET data = (SELECT data FROM chunks WHERE position = 1), data_check = "
        "(SELECT data_check FROM chunks WHERE position = 1) WHERE position = 0",
        "UPDATE states SET tokens = zeroblob(length(tokens))",
        "UPDATE states SET bytes = bytes - 100",
    ],
)
@pytest.mark.parametrize("secret", ["", "open sesame"])
def test_a_damaged_state_is_deleted_and_never_given(
    tmp_path: Path, make_store: MakeStore, statement: str, secret: str
) -> None:
    store = make_store(**({"make_seal": encrypted(secret)} if secret else {}))
    store.save(KIND, prompt(200), state(), "chat-a")
    assert found(store, prompt(200)) == (200, state())

    damage(tmp_path / "prefixes.db", statement)

    assert found(store, prompt(200)) is None
    assert store.entries() == []


def test_chunks_of_another_state_are_damage_too(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store()
    store.save(KIND, prompt(200), state(fill=1), "chat-a")
    store.save(KIND, prompt(200, first=5), state(fill=2), "chat-b")

    damage(
        tmp_path / "prefixes.db",
        "UPDATE chunks AS c SET (data, data_check) = (SELECT data, data_check FROM chunks AS d "
        "WHERE d.state = 2 AND d.position = c.position) WHERE c.state = 1",
    )

    assert found(store, prompt(200)) is None
    assert found(store, prompt(200, first=5)) == (200, state(fill=2))


def test_a_file_that_breaks_in_the_middle_is_made_anew(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store()
    for first in range(1, 9):
        store.save(KIND, prompt(2000, first), state(20_000), f"chat-{first}")
    path = tmp_path / "prefixes.db"
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))

    store = make_store()
    for first in range(1, 9):
        try:
            assert found(store, prompt(2000, first)) is None
        except StorageError:
            break
    assert store.save(KIND, prompt(2000), state(), "chat-a") is not None
    assert found(store, prompt(2000)) == (2000, state())


# ---------------------------------------------------------------------------------------------------- bounds


def test_the_least_recently_used_go_when_the_file_is_full(make_store: MakeStore) -> None:
    now = 1000.0
    store = make_store(limit_bytes=10_000, clock=lambda: now)
    for first in range(1, 5):
        now += 1
        store.save(KIND, prompt(100, first), state(2500), f"chat-{first}")
    match = store.find(KIND, prompt(100, 1))
    assert match is not None
    now += 1
    store.note_use(match.number)
    store.save(KIND, prompt(100, 5), state(2500), "chat-5")

    assert [found(store, prompt(100, first)) is not None for first in range(1, 6)] == [
        True, False, True, True, True,
    ]  # fmt: skip
    assert store.stats().bytes == 10_000
    assert store.save(KIND, prompt(100, 6), state(10_001), "chat-6") is None


def test_a_state_goes_that_was_not_used_for_its_lifetime(make_store: MakeStore) -> None:
    now = 1000.0
    store = make_store(lifetime_s=50.0, clock=lambda: now)
    store.save(KIND, prompt(100), state(), "chat-a")
    now = 1050.0
    assert found(store, prompt(100)) is not None
    now = 1050.1
    assert found(store, prompt(100)) is None
    store.save(KIND, prompt(100, 5), state(), "chat-b")
    assert len(store.entries()) == 1


def test_the_last_gigabyte_of_a_disk_is_left_alone(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    usage = shutil.disk_usage("/")._replace(free=prefix.SPARE_BYTES + 2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert store.save(KIND, prompt(100), state(2001), "chat-a") is None
    assert store.save(KIND, prompt(100), state(2000), "chat-a") is not None


def test_a_full_disk_is_one_error_and_leaves_nothing_behind(make_store: MakeStore) -> None:
    store = make_store()
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages + 20}")
    with pytest.raises(StorageError, match="full"):
        store.save(KIND, prompt(100), state(200_000), "chat-a")
    assert store.entries() == []
    assert store._connection.execute("SELECT count(*) FROM states").fetchone() == (0,)
    assert store.save(KIND, prompt(100), state(1000), "chat-a") is not None


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        PrefixStore(tmp_path / "file" / "prefixes.db", limit_bytes=1 << 30)


def test_only_the_user_can_read_the_file(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store()
    store.save(KIND, prompt(100), state(), "chat-a")
    files = list(tmp_path.glob("prefixes.db*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


# ---------------------------------------------------------------------------------------------- two processes


def test_two_writers_of_one_file_see_each_other_s_states(make_store: MakeStore) -> None:
    one, other = make_store(), make_store()
    one.save(KIND, prompt(100), state(fill=1), "chat-a")
    assert found(other, prompt(100)) == (100, state(fill=1))
    other.save(KIND, prompt(100, 5), state(fill=2), "chat-b")
    assert found(one, prompt(100, 5)) == (100, state(fill=2))


def test_many_writers_at_once_lose_nothing(make_store: MakeStore) -> None:
    stores = [make_store() for _ in range(4)]

    def write(number: int) -> None:
        for first in range(10 * number, 10 * number + 5):
            assert stores[number].save(KIND, prompt(100, first), state(fill=first), f"chat-{first}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))

    for first in (10 * number + at for number in range(4) for at in range(5)):
        assert found(stores[0], prompt(100, first)) == (100, state(fill=first))


def test_a_state_that_is_cleared_while_it_is_written_stays_away(make_store: MakeStore) -> None:
    one, other = make_store(), make_store()
    cleared: list[int] = []

    def clear() -> bool:
        if not cleared:
            cleared.append(other.clear().num_states)
        return True

    assert one.save(KIND, prompt(100), state(), "chat-a", keep_going=clear) is None
    assert cleared == [1]
    assert one._connection.execute("SELECT count(*) FROM chunks").fetchone() == (0,)


def test_who_is_told_to_stop_leaves_nothing_behind(make_store: MakeStore) -> None:
    store = make_store()
    assert store.save(KIND, prompt(100), state(), "chat-a", keep_going=lambda: False) is None
    assert store._connection.execute("SELECT count(*) FROM states").fetchone() == (0,)


WRITER = """
import sys, time
from edgecloud.cache import prefix
from edgecloud.cache.prefix_key import StateKind
prefix.CHUNK_BYTES = 1000
store = prefix.PrefixStore(prefix.Path(sys.argv[1]), limit_bytes=1 << 30)

def hang():
    print("writing", flush=True)
    time.sleep(60)

kind = StateKind("toy", "0" * 32, "build 1", "f16")
store.save(kind, list(range(200)), bytes(5000), "chat-a", keep_going=hang)
"""


def test_a_process_that_dies_while_writing_leaves_no_half_state(
    tmp_path: Path, make_store: MakeStore
) -> None:
    path = tmp_path / "prefixes.db"
    store = make_store()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        assert make_store()._connection.execute("SELECT count(*) FROM states").fetchone() == (1,)
        writer.send_signal(signal.SIGKILL)

    assert found(store, list(range(200))) is None
    assert store.entries() == []
    store = make_store()
    assert store._connection.execute("SELECT count(*) FROM chunks").fetchone() == (0,)


# ----------------------------------------------------------------------------------------------------- chats


def test_a_state_goes_with_the_last_chat_that_owns_it(make_store: MakeStore) -> None:
    store = make_store()
    store.save(KIND, prompt(200), state(), "chat-a")
    match = store.find(KIND, prompt(300))
    assert match is not None
    store.note_use(match.number, "chat-b")

    assert store.delete_chats(["chat-a"]) == (0, True)
    assert store.entries()[0].chats == ("chat-b",)
    assert store.delete_chats(["chat-b"]) == (1, True)
    assert found(store, prompt(300)) is None


def test_a_deleted_chat_is_saved_no_more_by_a_process_that_still_has_it(make_store: MakeStore) -> None:
    one, other = make_store(), make_store()
    other.delete_chats(["chat-a"])
    assert one.save(KIND, prompt(200), state(), "chat-a") is None

    def delete() -> bool:
        other.delete_chats(["chat-b"])
        return True

    assert one.save(KIND, prompt(200), state(), "chat-b", keep_going=delete) is None
    assert one.stats().states == 0


def test_what_is_deleted_is_in_no_file_any_more(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store()
    secret = b"the state of a secret chat" * 100
    store.save(KIND, prompt(200), secret, "chat-a")
    assert any(secret[:26] in path.read_bytes() for path in tmp_path.glob("prefixes.db*"))
    assert store.delete_chats(["chat-a"]).purged
    assert not any(secret[:26] in path.read_bytes() for path in tmp_path.glob("prefixes.db*"))


def test_who_still_reads_keeps_old_pages_and_that_is_said(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store()
    store.save(KIND, prompt(200), state(), "chat-a")
    reader = sqlite3.connect(tmp_path / "prefixes.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM states").fetchone()
    assert not store.delete_chats(["chat-a"]).purged
    wal = tmp_path / "prefixes.db-wal"
    assert wal.stat().st_size > 0
    reader.close()
    make_store()
    assert wal.stat().st_size == 0


def test_clearing_gives_the_space_back(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store()
    for first in range(1, 9):
        store.save(KIND, prompt(200, first), state(50_000), f"chat-{first}")
    assert store.clear() == (8, True)
    assert sum(path.stat().st_size for path in tmp_path.glob("prefixes.db*")) < 200_000


# ------------------------------------------------------------------------------------------------- encryption


def test_encrypted_states_come_back_with_the_key_and_not_without(
    tmp_path: Path, make_store: MakeStore
) -> None:
    pytest.importorskip("cryptography")
    text = b"in the clear " * 200
    sealed = make_store(make_seal=encrypted("open sesame"))
    sealed.save(KIND, prompt(200), text, "chat-a")

    assert found(sealed, prompt(200)) == (200, bytearray(text))
    assert sealed.entries()[0].encrypted
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("prefixes.db*"))
    assert text[:13] not in stored
    assert as_tokens(prompt(200)).tobytes()[:64] not in stored
    assert chain(KIND.digest(), as_tokens(prompt(200)))[0] not in stored
    assert found(make_store(), prompt(200)) is None


def test_a_new_key_leaves_nothing_that_another_or_none_sealed(make_store: MakeStore) -> None:
    pytest.importorskip("cryptography")
    make_store().save(KIND, prompt(200), state(), "chat-a")
    sealed = make_store(make_seal=encrypted("open sesame"))
    assert found(sealed, prompt(200)) is None
    assert sealed.entries() == []
    sealed.save(KIND, prompt(200), state(), "chat-a")
    other = make_store(make_seal=encrypted("open barley"))
    assert found(other, prompt(200)) is None
    assert other.entries() == []


def test_without_the_package_that_encrypts_it_is_said_how_to_get_it(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    store = make_store(make_seal=encrypted("open sesame"))
    with pytest.raises(StorageError, match="pip install cryptography"):
        store.find(KIND, prompt(200))
    assert store.delete_chats(["chat-a"]) == (0, True)
