"""What is learnt from rows that the same models were asked: four estimates, each blind to something else.

    neighbours   the mean score of the nearest rows, each weighed by its nearness
    kernel       a smooth function of the vector and the structure
    groups       the mean score of the groups that the question may be of
    words        a sum over its words and word pairs

They err on different questions, so their mean is better than any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .bags import Bags, WordModel, fit_words
from .features import Floats
from .kernel import Kernel, fit_kernel
from .logistic import Doubles
from .nearest import Nearest, basis_of
from .rows import Array, Rows

# Chosen by how MMLU's, GSM8K's and LLMRouter's gains are ranked; `bench/routing.py` prints what they give.
# Neighbours spread their estimates twice as wide as the others, and would drown them.
NEIGHBOURS_SHARE = 0.6
NEIGHBOURS, SHARPENING, PRIOR_ROWS = 60, 8.0, 5.0
GROUP_PRIOR_ROWS = 20.0
NEAREST = 10


@dataclass(frozen=True, slots=True)
class Parts:
    """For the models of `columns`, learnt from the rows `known`; `scores` (known, columns) are theirs,
    `means` their means, `group_means` (groups, columns). `words` is None where the rows' words are not known.
    """

    known: Array
    columns: Array
    scores: Doubles
    means: Doubles
    nearest: Nearest
    kernel: Kernel
    group_means: Doubles
    words: WordModel | None

    def predict(self, keys: Floats, inputs: Floats, bags: Bags | None) -> tuple[Doubles, Doubles]:
        """Chances, not calibrated (q, columns), and nearness (q,): the mean cosine of the nearest rows."""
        near, index = self.nearest.search(keys, NEIGHBOURS)
        nearness = np.sort(near, 1)[:, -NEAREST:].mean(1).astype(np.float64)
        weights = np.exp(SHARPENING * near)
        weights *= near.shape[1] / weights.sum(1, keepdims=True)
        voted = np.einsum("qk,qkm->qm", weights, self.scores[index]) + PRIOR_ROWS * self.means
        total = NEIGHBOURS_SHARE * voted / (near.shape[1] + PRIOR_ROWS)
        shares = NEIGHBOURS_SHARE
        smooth = self.kernel.predict(inputs)
        number = len(self.columns)
        member = np.maximum(smooth[:, number:], 0.0) + 1e-9
        total += smooth[:, :number] + member / member.sum(1, keepdims=True) @ self.group_means
        shares += 2.0
        if bags is not None and self.words is not None:
            total += self.words.predict(bags)
            shares += 1.0
        return total / shares, nearness


def fit_parts(rows: Rows, columns: Array, known: Array, keys: Floats, inputs: Floats) -> Parts:
    """`keys` and `inputs` are those of the rows `known`."""
    scores = rows.scores[np.ix_(known, columns)]
    names, group = np.unique(rows.groups[known], return_inverse=True)
    counts = np.bincount(group, minlength=len(names))
    sums = np.stack([np.bincount(group, each, minlength=len(names)) for each in scores.T], 1)
    means = (sums + GROUP_PRIOR_ROWS * scores.mean(0)) / (counts + GROUP_PRIOR_ROWS)[:, None]
    return Parts(
        known,
        columns,
        scores,
        scores.mean(0),
        Nearest(keys, basis_of(keys)),
        fit_kernel(inputs, np.hstack([scores, np.eye(len(names))[group]])),
        means,
        fit_words(rows.bags.take(known), scores) if rows.bags is not None else None,
    )
