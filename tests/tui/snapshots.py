"""Pictures of the screen, compared with those that were looked at and found good.

`UPDATE_SNAPSHOTS=1` writes them anew: look at each before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgecloud.app.tui.app import EdgeCloudApp

FOLDER = Path(__file__).parent / "pictures"


def picture(app: EdgeCloudApp) -> str:
    """The screen as SVG, without the number that makes its names unique."""
    return re.sub(r"terminal-\d+", "terminal", app.export_screenshot(title="edgecloud"))


def rows(svg: str) -> list[str]:
    """The texts of a picture by row, for a difference that can be read."""
    found: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        found.setdefault(float(y), []).append((float(x), text.replace("&#160;", " ")))
    return ["".join(text for _, text in sorted(parts)) for _, parts in sorted(found.items())]


def check(app: EdgeCloudApp, name: str, folder: Path) -> None:
    """Compare the screen with the picture of this name; a new look is left in `folder` to be looked at."""
    now, path = picture(app), FOLDER / f"{name}.svg"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(now, encoding="utf-8")
        return
    assert path.exists(), f"there is no picture {name}: write it with UPDATE_SNAPSHOTS=1 and look at it"
    before = path.read_text(encoding="utf-8")
    if now != before:
        (folder / f"{name}.svg").write_text(now, encoding="utf-8")
    assert rows(now) == rows(before), f"the text of {name} changed: see {folder / name}.svg"
    assert now == before, f"the looks of {name} changed: see {folder / name}.svg"
