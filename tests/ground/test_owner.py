"""Whose work is in progress: a live process's, a dead one's, or one whose id may be used again."""

from __future__ import annotations

import os
import subprocess
import sys

from edgecloud.owner import Owner, this_process


def test_this_process_is_alive_and_a_finished_one_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = this_process()
    child_owner = Owner(child.pid, me.started)
    assert me.state() == "alive"
    assert child_owner.state() in ("alive", "unsure")

    child.kill()  # a zombie until it is waited for
    while child_owner.state() != "dead":
        pass
    child.wait()

    assert child_owner.state() == "dead"


def test_a_process_id_used_again_is_not_taken_for_the_owner() -> None:
    assert Owner(os.getpid(), this_process().started - 1000).state() == "unsure"
