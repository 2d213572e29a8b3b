"""The rows nearest to a question, without reading all of them.

For one question the rows are searched by their first `DIMENSIONS` principal components, a sixth of the
numbers, and the best `EXAMINED` are compared whole; what was found is remembered, since who explains a
decision asks for it again. Many questions at once are compared with every row: one product of matrices costs
less than picking rows for each.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from .features import Floats
from .rows import Array

DIMENSIONS, EXAMINED = 64, 160
FEW = 4
"""Questions up to which rows are picked for each."""
REMEMBERED = 256


class Nearest:
    """`keys` (n, width) are unit vectors, `basis` (width, DIMENSIONS) their principal components."""

    def __init__(self, keys: Floats, basis: Floats) -> None:
        self.keys = keys
        self.basis = basis
        self._short = np.ascontiguousarray(keys @ basis)
        self._found: OrderedDict[tuple[bytes, int], tuple[Floats, Array]] = OrderedDict()

    def search(self, keys: Floats, number: int) -> tuple[Floats, Array]:
        """Cosines and row numbers of the `number` nearest rows of each key, in no order: (q, number) each."""
        number = min(number, len(self.keys))
        if len(keys) > FEW or len(self.keys) <= max(EXAMINED, number):
            return largest(keys @ self.keys.T, number)
        found = [self._one(key, number) for key in keys]
        return np.stack([each[0] for each in found]), np.stack([each[1] for each in found])

    def _one(self, key: Floats, number: int) -> tuple[Floats, Array]:
        asked = key.tobytes(), number
        found = self._found.get(asked)
        if found is None:
            found = self._found[asked] = self._nearest(key, number)
            if len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
        return found

    def _nearest(self, key: Floats, number: int) -> tuple[Floats, Array]:
        rough = self._short @ (key @ self.basis)
        some = np.argpartition(rough, -EXAMINED)[-EXAMINED:]
        exact = self.keys[some] @ key
        best = np.argpartition(exact, -number)[-number:]
        return exact[best], some[best]


def basis_of(keys: Floats) -> Floats:
    """The principal components of keys, the largest first: (width, up to DIMENSIONS)."""
    _, vectors = np.linalg.eigh((keys.T @ keys).astype(np.float64))
    basis: Floats = np.ascontiguousarray(vectors[:, ::-1][:, :DIMENSIONS].astype(np.float32))
    return basis


def largest(similar: Floats, number: int) -> tuple[Floats, Array]:
    """The largest values of each row, in no order, and where they are."""
    if number == similar.shape[1]:
        return similar, np.broadcast_to(np.arange(number), similar.shape)
    index = np.argpartition(similar, -number, axis=1)[:, -number:]
    return np.take_along_axis(similar, index, 1), index
