"""What only reads works on a disk that can't be written, and what writes says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from edgecloud.app.history import History
from edgecloud.cache.answers import AnswerCache
from edgecloud.cache.key import key_of
from edgecloud.cache.records import Answer
from edgecloud.router.ledger import Ledger, RequestEntry
from edgecloud.types import ChatRequest, ChoiceDone, Done, Message, Start, TextDelta, Usage

from .shell import environment
from .test_history import make_receipt

NOBODY = 65534

READING = (
    "history list",
    "history show",
    "history search sky",
    "history export",
    "stats",
    "why",
    "route history",
    "route eval",
    "pool list",
    "cache list",
    "cache show {kept}",
    "cache stats",
    "cache export",
)
WRITING = ("history rm {chat}", "cache forget {kept}", "cache clear -y", "route train --undo")

SCRIPT = """
import json, os, shutil, sys
from pathlib import Path
from click.testing import CliRunner
from edgecloud.app.cli.main import edgecloud
from edgecloud.app.cli.shell import State

def run(command):
    done = CliRunner().invoke(edgecloud, command.split(), obj=State())
    return done.stdout, "" if done.exit_code == 0 else str(done.exception)

reading, writing = json.load(sys.stdin)
data = os.environ["EDGECLOUD_HOME"]
# Where it can be written first: what is imported later may be out of nobody's reach.
os.environ["EDGECLOUD_HOME"] = data + "2"
shutil.copytree(data, data + "2")
writable = [run(command) for command in reading]
for command in writing:
    run(command)
os.environ["EDGECLOUD_HOME"] = data
for file in Path(data).iterdir():
    file.chmod(0o400)
os.chmod(data, 0o500)
if os.geteuid() == 0:  # modes mean nothing to root
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([writable, [run(command) for command in reading], [run(command) for command in writing]]))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A chat, its request, its kept answer; for nobody to read."""
    folder = tmp_path / "data"
    request = ChatRequest((Message("user", "Why is the sky blue?"),), door="ask")
    with closing(History(folder / "edgecloud.db")) as history:
        turn = history.begin(request)
        history.append(turn, 0, "Light scatters.")
        history.finish(turn, None, {0: "stop"}, {}, "complete")
    with closing(Ledger(folder / "edgecloud.db")) as ledger:
        entry = RequestEntry(make_receipt(), time.time(), "ask", None, turn.chat_id, "ok", 0)
        ledger.settle(entry, (), ())
    with closing(AnswerCache(folder / "cache.db")) as cache:
        events = (Start("local", "m", 5), TextDelta("Light."), ChoiceDone(0, "stop"), Done(Usage(5, 3)))
        cache.store(key_of(request), None, Answer(events, "local:m", chat_id=turn.chat_id))
    return folder


def test_what_reads_tells_the_same_and_what_writes_is_refused(tmp_path: Path, data: Path) -> None:
    with closing(History(data / "edgecloud.db")) as history, closing(AnswerCache(data / "cache.db")) as cache:
        names = {"chat": history.list(1)[0].id, "kept": cache.entries(1)[0].id}
    commands = [[each.format(**names) for each in some] for some in (READING, WRITING)]
    if os.geteuid() == 0:
        for owned in (data, *data.iterdir()):
            os.chown(owned, NOBODY, NOBODY)
        for folder in [*data.parents][:3]:
            folder.chmod(folder.stat().st_mode | 0o711)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env=environment(tmp_path),
    )
    data.chmod(0o700)
    assert done.returncode == 0, done.stderr
    writable, reading, writing = json.loads(done.stdout)

    assert reading == writable
    assert [failure for _, failure in reading] == [""] * len(READING)
    assert all("cannot be written" in failure for _, failure in writing), writing
