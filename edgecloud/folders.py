"""Where our files are: the settings, the data, and the socket of a running server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import platformdirs

APP = "edgecloud"
FOLDER_VARIABLES = ("EDGECLOUD_CONFIG", "EDGECLOUD_HOME", "EDGECLOUD_RUNTIME")


def expanded(name: str | Path) -> Path:
    """A path that somebody gave, `~` being their home; as it is where there is no such user."""
    return Path(os.path.expanduser(name))  # Path's own raises for a user who isn't there


def config_path() -> Path:
    """`config.toml`, or what `EDGECLOUD_CONFIG` names."""
    override = os.environ.get("EDGECLOUD_CONFIG")
    return Path(override) if override else Path(platformdirs.user_config_dir(APP)) / "config.toml"


def data_dir() -> Path:
    """Where databases and pulled models live; `EDGECLOUD_HOME` overrides."""
    override = os.environ.get("EDGECLOUD_HOME")
    return Path(override) if override else Path(platformdirs.user_data_dir(APP))


def runtime_dir() -> Path:
    """Where the running server's socket lives, private to the user; `EDGECLOUD_RUNTIME` overrides."""
    override = os.environ.get("EDGECLOUD_RUNTIME")
    if override:
        return Path(override)
    if sys.platform == "darwin":
        return Path(platformdirs.user_runtime_dir(APP))
    # Not what platformdirs falls back to, a guessable name in /tmp, which another user may have taken.
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    return folder / APP if os.access(folder, os.W_OK) else data_dir() / "run"
