"""Drafting on this machine first: the beginning is held back and judged before any of it is shown."""

from __future__ import annotations

import dataclasses

from edgecloud.types import ChatRequest, ChoiceDone, Done, TextDelta

from ..router.acceptance import Draft, Objection, judge
from ..router.decision import Cascade, Estimate
from .attempt import bare
from .opening import Opening
from .upstreams import Upstream

_TOLD: dict[Objection, str] = {
    "empty": "said nothing",
    "refusal": "declined to answer",
    "loop": "repeated itself",
    "form": "was not in the format asked for",
    "unsure": "was not sure enough",
}


class Drafting:
    """The draft that a cascade asks for; `before` is its engine's chance of being right without one."""

    def __init__(self, cascade: Cascade, before: Estimate) -> None:
        self._cascade = cascade
        self._before = before
        self._wants_logprobs = False
        self.complaint = ""
        """What to tell of a draft that was not kept."""

    def is_by(self, upstream: Upstream) -> bool:
        return upstream.name == self._cascade.draft

    def asked(self, request: ChatRequest) -> ChatRequest:
        """The request as the drafting engine gets it: with the logprobs that the judgement needs."""
        self._wants_logprobs = request.logprobs is not None
        return request if self._wants_logprobs else dataclasses.replace(request, logprobs=0)

    async def is_accepted(self, opening: Opening) -> bool:
        """Read the beginning of the draft and judge it; one that is not kept is ended. Raises what the engine
        raises.
        """
        text: list[str] = []
        logprobs: list[float] = []
        finished = False
        async for event in opening.rest:
            opening.head.append(event)
            if isinstance(event, TextDelta):
                text.append(event.text)
                logprobs += [each.logprob for each in event.logprobs]
            finished = finished or isinstance(event, ChoiceDone | Done)
            if finished or len(logprobs) >= self._cascade.hold_back:
                break
        request = opening.attempt.request
        is_json = request.constraint is not None and request.constraint.kind in ("json", "schema")
        draft = Draft("".join(text), tuple(logprobs), finished)
        verdict = judge(draft, self._before, self._cascade.floor, json=is_json)
        if not verdict.accepted:
            why = _TOLD[verdict.objection] if verdict.objection else "was not good enough"
            self.complaint = f"The draft by {self._cascade.draft} {why}."
            await opening.aclose("rejected")
            return False
        if not self._wants_logprobs:
            opening.head = [bare(event) for event in opening.head]
            opening.attempt.hides_logprobs = True
        return True
