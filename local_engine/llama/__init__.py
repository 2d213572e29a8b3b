"""The thin, typed wrapper around llama.cpp: nothing else in the house touches the binding.

Objects here own their C counterpart and free it in `close`. A `Context` belongs to one thread at a time; a
`Model` (weights and vocabulary) may be read from any thread. Errors that a file or a request can cause are
`EdgeCloudError`s, everything else is a return code or a bug.
"""

from .batch import Batch
from .context import ABORTED, INVALID_BATCH, MAX_SEQUENCES, NO_KV_SLOT, Context, Logits
from .embedding import EmbeddingContext
from .grammar import Grammar
from .library import build, supports_gpu
from .model import Model
from .quantization import quantize
from .sampling import Candidates, Chain

__all__ = [
    "ABORTED",
    "INVALID_BATCH",
    "MAX_SEQUENCES",
    "NO_KV_SLOT",
    "Batch",
    "Candidates",
    "Chain",
    "Context",
    "EmbeddingContext",
    "Grammar",
    "Logits",
    "Model",
    "build",
    "quantize",
    "supports_gpu",
]
