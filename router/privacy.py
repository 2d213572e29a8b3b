"""Which requests stay on this machine: by rules of one's own, by what personal data looks like, by a pin.

Sticky and fail closed: what was found in a chat once binds it for good, and what can't be judged stays here.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from edgecloud.settings import PrivacySettings
from edgecloud.types import ChatRequest

from .exemplars import shipped
from .facts import Privacy, PrivacyReason
from .globs import is_meant, mentions
from .pii import kinds

log = logging.getLogger(__name__)

ASKED = PrivacyReason("asked", "it was asked to be")
PINNED = PrivacyReason("pin", "the chat is pinned to this machine")
UNJUDGED = PrivacyReason("unjudged", "it could not be judged")
UNREAD = PrivacyReason("unread", "whether its chat is private can't be read")
PUBLIC = Privacy()

Reasons = tuple[PrivacyReason, ...]


def judge(
    request: ChatRequest,
    settings: PrivacySettings,
    *,
    paths: Iterable[str] = (),
    pinned: bool = False,
    earlier: Privacy = PUBLIC,
) -> Privacy:
    """Whether the request has to stay here, with every reason, each label once.

    `paths` are the files that were attached, `pinned` is what the chat says, `earlier` what was found in it
    before: keep the result with the chat and hand it in again. Images are not looked into. Never raises: what
    can't be judged, a prompt of token ids included, is private.
    """
    reasons = list(earlier.reasons) if earlier.local_only else []
    if request.private:
        reasons.append(ASKED)
    if pinned:
        reasons.append(PINNED)
    try:
        reasons += _found(request, tuple(paths), settings)
    except Exception:
        # A bug here must not be what sends a private text away.
        log.exception("request %s could not be judged", request.id)
        reasons.append(UNJUDGED)
    by_label = {reason.label: reason for reason in reversed(reasons)}
    unique = tuple(by_label[label] for label in dict.fromkeys(reason.label for reason in reasons))
    return Privacy(bool(unique), unique)


def _found(
    request: ChatRequest, paths: tuple[str, ...], settings: PrivacySettings
) -> Iterator[PrivacyReason]:
    if any(is_meant(path, settings.paths) for path in paths):
        yield PrivacyReason("path", "it holds a file that stays here")
    for text, is_question in _texts(request):
        yield from _MEMO.reasons(text, is_question, settings)
    has_rules = settings.patterns or settings.exemplars or settings.rules or settings.paths
    if isinstance(request.prompt, tuple) and has_rules:
        yield UNJUDGED


def _texts(request: ChatRequest) -> Iterator[tuple[str, bool]]:
    """Every text of the request, and whether a person asks in it. Only that can read like something private:
    the instructions of an agent's author speak of internal things all the time.
    """
    if isinstance(request.prompt, str):
        yield request.prompt, True
    for message in request.messages:
        yield message.content, message.role == "user"
        if message.reasoning:
            yield message.reasoning, False
        for call in message.tool_calls:
            yield call.arguments, False


def _scan(text: str, is_question: bool, settings: PrivacySettings) -> Iterator[PrivacyReason]:
    if settings.patterns:
        for pattern in kinds(text):
            yield PrivacyReason(f"pii:{pattern.kind}", f"it holds {pattern.what}")
    for rule in settings.rules:
        if re.search(rule.pattern, text):
            yield PrivacyReason(f"rule:{rule.name}", f"the rule {rule.name!r} matches")
    if settings.paths and any(is_meant(path, settings.paths) for path in mentions(text)):
        yield PrivacyReason("path", "it mentions a file that stays here")
    if settings.exemplars and is_question:
        label = shipped().label_of(text)
        if label is not None:
            yield PrivacyReason(f"like:{label}", f"it reads like '{label.replace('_', ' ')}'")


class _Memo:
    """What was found in the latest texts: a client sends its whole chat again with every turn.

    The keys are keyed digests, so no text outlives its request here.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._key = secrets.token_bytes(32)
        self._kept: OrderedDict[tuple[bytes, bool, PrivacySettings], Reasons] = OrderedDict()

    def reasons(self, text: str, is_question: bool, settings: PrivacySettings) -> Reasons:
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), key=self._key, digest_size=16).digest()
        key = (digest, is_question, settings)
        found = self._kept.pop(key, None)
        if found is None:
            found = tuple(one for one in _scan(text, is_question, settings) if not _is_ignored(one, settings))
        self._kept[key] = found
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return found


_MEMO = _Memo(4096)


def _is_ignored(reason: PrivacyReason, settings: PrivacySettings) -> bool:
    """Whether a label, or the family before its colon, may leave; rules of one's own are never ignored."""
    family = reason.label.partition(":")[0]
    return family in ("pii", "like") and (reason.label in settings.ignore or family in settings.ignore)
