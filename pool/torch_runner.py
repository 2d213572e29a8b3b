"""The runner of real models: moves blocks, computes a step, scores prompts and draws tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgecloud.errors import EdgeCloudError
from edgecloud.kernels.blocks import copy_blocks, move_blocks
from edgecloud.vocabulary import TokenScore

from .models.decoder import Decoder
from .plan import Item, StepPlan
from .runner import Draw, Drawing, RunnerFacts, StepOutput
from .sampling import DrawingState, Row, Sampler, commit, score, walk

# Rows of logits in memory at a time while a prompt is scored: 64 of 150,000 floats are 38 MB.
SCORED_AT_ONCE = 64


class TorchRunner:
    """Implements `Runner` over a decoder. `num_host_blocks` bounds what can be swapped out."""

    def __init__(self, decoder: Decoder, facts: RunnerFacts, num_host_blocks: int = 0) -> None:
        self.facts = facts
        self.decoder = decoder
        storage = decoder.kv.storage
        shape = (storage.shape[0], num_host_blocks, storage.shape[2])
        self._host = torch.empty(shape, dtype=torch.uint8, pin_memory=storage.is_cuda)
        self._sampler = Sampler(facts.vocab_size, storage.device)
        self._states: dict[int, DrawingState] = {}

    def begin(self, request_id: int, prompt: tuple[int, ...], drawing: Drawing) -> None:
        self._states[request_id] = DrawingState(prompt, drawing)

    def end(self, request_id: int) -> None:
        self._states.pop(request_id, None)

    def close(self) -> None:
        self._states.clear()
        # Weights and KV go with the decoder; nothing may be executed from here on.
        self.__dict__.pop("decoder", None)
        self.__dict__.pop("_host", None)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepOutput:
        storage = self.decoder.kv.storage
        move_blocks(storage, self._host, plan.swap_outs)
        move_blocks(self._host, storage, plan.swap_ins)
        copy_blocks(storage, plan.copies)
        if not plan.items:
            return StepOutput({}, {}, {})
        hidden = self.decoder.forward(plan)
        scores = {
            item.request_id: self._score_prompt(item, hidden[start:end])
            for item, start, end in zip(plan.items, plan.offsets, plan.offsets[1:], strict=False)
            if self._states[item.request_id].drawing.score_prompt
        }
        draws, failed = self._draw(plan, hidden)
        return StepOutput(draws, scores, failed)

    def _score_prompt(self, item: Item, hidden: torch.Tensor) -> tuple[TokenScore, ...]:
        """Scores of the prompt tokens that follow the item's, as far as none has been given yet."""
        state = self._states[item.request_id]
        first = max(item.start + 1, state.num_scored)
        last = min(item.start + item.num_tokens + 1, len(state.prompt))
        scores: list[TokenScore] = []
        for start in range(first, last, SCORED_AT_ONCE):
            end = min(start + SCORED_AT_ONCE, last)
            logits = self.decoder.logits(hidden[start - 1 - item.start : end - 1 - item.start])
            top = state.drawing.logprobs or 0
            scores += score(logits, state.prompt[start:end], [top] * (end - start))
        state.num_scored = max(first, last)
        return tuple(scores)

    def _draw(
        self, plan: StepPlan, hidden: torch.Tensor
    ) -> tuple[dict[int, tuple[Draw, ...]], dict[int, EdgeCloudError]]:
        rows: list[Row] = []
        places: list[int] = []
        for item, end in zip(plan.items, plan.offsets[1:], strict=True):
            state = self._states[item.request_id]
            drafts = tuple(plan.tokens[end - item.num_drafts : end])
            for sample in range(item.num_samples):
                choice = state.choice(item.choice + sample)
                for ahead in range(item.num_drafts + 1):
                    rows.append(Row(state, choice, drafts[:ahead]))
                    places.append(end - 1 - item.num_drafts + ahead)
        draws: dict[int, tuple[Draw, ...]] = {item.sequence_id: () for item in plan.items}
        failed: dict[int, EdgeCloudError] = {}
        if not rows:
            return draws, failed
        logits = self.decoder.logits(hidden if places == list(range(len(hidden))) else hidden[places])
        wanted = [index for index, row in enumerate(rows) if row.state.drawing.logprobs is not None]
        raw = logits[wanted] if wanted else logits
        drawn = self._sampler.draw(logits, rows)
        scores = dict(zip(wanted, self._scores(raw, rows, drawn, wanted), strict=True))
        at = 0
        for item in plan.items:
            size = item.num_drafts + 1
            for _ in range(item.num_samples):
                result = self._settle(rows[at : at + size], drawn[at : at + size])
                if isinstance(result, EdgeCloudError):
                    failed[item.request_id] = result
                else:
                    tokens, stop = result
                    own = tuple(scores[i] for i in range(at, at + len(tokens)) if i in scores)
                    try:
                        draws[item.sequence_id] += (commit(rows[at], tokens, stop, own),)
                    except EdgeCloudError as error:
                        failed[item.request_id] = error
                at += size
        return draws, failed

    def _scores(
        self,
        raw: torch.Tensor,
        rows: Sequence[Row],
        drawn: Sequence[int | EdgeCloudError],
        wanted: Sequence[int],
    ) -> list[TokenScore]:
        tokens = [token if isinstance(token := drawn[index], int) else 0 for index in wanted]
        return score(raw, tokens, [rows[index].state.drawing.logprobs or 0 for index in wanted])

    def _settle(
        self, rows: Sequence[Row], drawn: Sequence[int | EdgeCloudError]
    ) -> tuple[tuple[int, ...], bool] | EdgeCloudError:
        """One sample's tokens and whether they end it, or why there are none; a row behind a draft that fell
        doesn't count."""
        tokens: list[int] = []
        for token in drawn:
            if isinstance(token, EdgeCloudError):
                break
            tokens.append(token)
        drafts = rows[-1].ahead
        kept, stop = walk(rows[0], tokens, drafts)
        if len(kept) == len(tokens) < len(drawn) and not stop and kept == drafts[: len(kept)]:
            error = drawn[len(tokens)]
            assert isinstance(error, EdgeCloudError)
            return error
        return kept, stop
