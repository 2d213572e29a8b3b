"""Run with `TRITON_INTERPRET=1`: a padded decode step over standing tensors gives what a plain step gives.

A process of its own, because triton reads that variable when it is imported. Prints `same` and ends with 0.
"""

from __future__ import annotations

import torch

from edgecloud.pool.models import graphs as graphs_module
from edgecloud.pool.models.config import DecoderConfig
from edgecloud.pool.models.graphs import DecodeGraphs
from edgecloud.pool.models.matrices import DecoderWeights, LayerWeights, Matrix
from edgecloud.pool.models.torch_decoder import TorchDecoder
from edgecloud.pool.plan import Item, StepPlan

HIDDEN, HEAD, VOCABULARY, BLOCK, NUM_BLOCKS, CONTEXT = 32, 16, 23, 4, 12, 16
CONFIG = DecoderConfig(
    "llama", VOCABULARY, HIDDEN, 2, 2, 1, HEAD, 32, CONTEXT, 1e-5, (1.0,) * (HEAD // 2), (None, 5), True
)


def make_decoder() -> TorchDecoder:
    torch.manual_seed(1)

    def matrix(n: int, k: int) -> Matrix:
        return Matrix(torch.randn(n, k) * 0.3)

    def norm() -> torch.Tensor:
        return torch.rand(HIDDEN) + 0.5

    embedding = matrix(VOCABULARY, HIDDEN)
    layers = [
        LayerWeights(
            norm(), matrix(4 * HEAD, HIDDEN), None, None, matrix(HIDDEN, 2 * HEAD), norm(),
            matrix(64, HIDDEN), matrix(HIDDEN, 32),
        )
        for _ in range(2)
    ]  # fmt: skip
    return TorchDecoder(
        CONFIG, DecoderWeights(embedding, layers, norm(), embedding), num_blocks=NUM_BLOCKS, block_size=BLOCK,
        kv_type=torch.float32, context=CONTEXT, device=torch.device("cpu"),
    )  # fmt: skip


def decodes(lengths: list[int], shift: int) -> StepPlan:
    """A step of one token for sequences that have so many already."""
    items, slots = [], []
    for row, start in enumerate(lengths):
        table = tuple(range(4 * row, 4 * row + 4))
        items.append(Item(row, row, 0, start, 1, 0, 1, table))
        slots.append(table[start // BLOCK] * BLOCK + start % BLOCK)
    tokens = [(7 * row + shift) % VOCABULARY for row in range(len(lengths))]
    offsets = list(range(len(lengths) + 1))
    return StepPlan(0, tuple(items), tokens, list(lengths), slots, offsets, (), (), (), (), ())


def main() -> None:
    # From the fifth token on the graphs for long contexts are asked.
    graphs_module.SHORT_CONTEXT = 4
    plain, graphed = make_decoder(), make_decoder()
    graphs = DecodeGraphs(
        graphed.compute,
        CONFIG.windows,
        max_rows=4,
        context=CONTEXT,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK,
        device=torch.device("cpu"),
        # Every replay runs the function again over the same tensors, as a graph would.
        record=lambda run: run,
    )
    for shift, lengths in enumerate([[0, 0, 0], [1, 1, 1], [2, 2], [3, 2, 2], [4], [5, 3, 3]]):
        plan = decodes(lengths, shift)
        hidden = graphs.run(plan)
        assert hidden is not None
        torch.testing.assert_close(hidden, plain.forward(plan), rtol=1e-5, atol=1e-5)
    assert graphs.num_graphs == 6
    for mine, theirs in zip(graphed.kv.layers, plain.kv.layers, strict=True):
        torch.testing.assert_close(mine.k[:NUM_BLOCKS], theirs.k[:NUM_BLOCKS])
        torch.testing.assert_close(mine.v[:NUM_BLOCKS], theirs.v[:NUM_BLOCKS])
    print("same")


if __name__ == "__main__":
    main()
