"""Heads as an archive of arrays, without a pickle: what ships, and how it is read again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..wording import NUM_BUCKETS
from .bags import WordModel
from .calibration import Calibration
from .heads import Head, Heads, asked
from .kernel import Kernel
from .nearest import Nearest
from .parts import Parts
from .rising import POINTS
from .rows import Array, pack, unpack


def to_arrays(heads: Heads) -> dict[str, Array]:
    arrays = {
        **pack(heads.rows),
        "calibration": np.array([head.calibration for head in heads.heads]),
        "heads": np.array([head[:4] for head in heads.heads]),
        "curves": heads.curves,
        "usual_oddity": np.array(heads.usual_oddity),
        "center": heads.center.astype(np.float32),
        "spread": heads.spread.astype(np.float32),
    }
    for number, part in enumerate(heads.parts):
        arrays |= {
            f"basis{number}": part.nearest.basis.astype(np.float16),
            f"landmarks{number}": part.kernel.chosen.astype(np.int32),
            f"kernel{number}": part.kernel.weights,
            f"kernel_means{number}": part.kernel.means,
            f"group_means{number}": part.group_means,
        }
        if part.words is not None:
            arrays |= {
                f"rarity{number}": part.words.rarity.astype(np.float16),
                f"words{number}": part.words.weights.astype(np.float16),
                f"word_means{number}": part.words.means,
            }
    return arrays


def from_arrays(arrays: Any) -> Heads:
    """Raises `ValueError` or `KeyError` for arrays that don't fit together."""
    rows = unpack(arrays)
    heads = [
        Head(float(mean), float(skill), float(stretch), float(usual), Calibration(*map(float, numbers)))
        for (mean, skill, stretch, usual), numbers in zip(arrays["heads"], arrays["calibration"], strict=True)
    ]
    if len(heads) != len(rows.models):
        raise ValueError(f"{len(heads)} heads are not for {len(rows.models)} models")
    curves = arrays["curves"].astype(np.float64)
    _expect("curves", curves, (len(heads), POINTS))
    found = Heads(rows, heads, [], arrays["center"], arrays["spread"], float(arrays["usual_oddity"]), curves)
    for number, (known, columns) in enumerate(asked(rows)):
        keys, inputs = found.placed(rows.vectors[known], rows.features[known])
        chosen = arrays[f"landmarks{number}"]
        weights, means = arrays[f"kernel{number}"], arrays[f"group_means{number}"]
        _expect(f"landmarks{number}", chosen, (None,))
        _expect(f"kernel{number}", weights, (len(chosen), len(columns) + len(means)))
        _expect(f"basis{number}", arrays[f"basis{number}"], (keys.shape[1], None))
        _expect(f"group_means{number}", means, (len(means), len(columns)))
        words = None
        if f"words{number}" in arrays:
            words = WordModel(
                arrays[f"rarity{number}"].astype(np.float32),
                arrays[f"words{number}"].astype(np.float32),
                arrays[f"word_means{number}"],
            )
            _expect(f"words{number}", words.weights, (NUM_BUCKETS, len(columns)))
            _expect(f"rarity{number}", words.rarity, (NUM_BUCKETS,))
        found.parts.append(
            Parts(
                known,
                columns,
                scores := rows.scores[np.ix_(known, columns)],
                scores.mean(0),
                Nearest(keys, arrays[f"basis{number}"].astype(np.float32)),
                Kernel(inputs[chosen], chosen, weights, arrays[f"kernel_means{number}"]),
                means,
                words,
            )
        )
    return found


def _expect(name: str, array: Array, shape: tuple[int | None, ...]) -> None:
    fits = array.ndim == len(shape) and all(
        wanted in (None, got) for wanted, got in zip(shape, array.shape, strict=True)
    )
    if not fits or not np.isfinite(array).all():
        raise ValueError(f"{name} has the shape {array.shape} and not {shape}, or is no numbers")
