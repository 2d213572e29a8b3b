"""Every error a user can cause or meet: its HTTP status, OpenAI type and code, exit code, and one sentence.

The sentence says what happened and how to mend it; it never holds a key or the user's text.
A bug of ours is any other exception; the doors turn it into `InternalError` and log it.
"""

from __future__ import annotations

from typing import ClassVar


class EdgeCloudError(Exception):
    """Base of the hierarchy.

    `message` is what a person sees; `param` names the request field at fault; `extra` are further JSON keys
    of the OpenAI envelope (`n_ctx`); `retry_after` is in seconds and sent as `Retry-After`.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        extra: dict[str, int | str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after = retry_after
        self.extra = extra or {}


class BadRequest(EdgeCloudError):
    """The request itself is wrong; sending it again unchanged cannot help."""

    status = 400
    type = "invalid_request_error"
    exit_code = 2


class ContextLengthExceeded(BadRequest):
    """The prompt, with what the answer needs at least, does not fit the model's context; carries
    `n_prompt_tokens` and `n_ctx`, as llama.cpp clients expect. `setting` names what makes it larger, where
    that is known; `is_estimate` says that nobody has counted the prompt.
    """

    type = "exceed_context_size_error"
    default_code = "context_length_exceeded"
    exit_code = 1

    def __init__(
        self,
        n_prompt_tokens: int,
        n_ctx: int,
        *,
        reserved: int = 0,
        param: str | None = "messages",
        setting: str = "",
        is_estimate: bool = False,
    ) -> None:
        about = "about " * is_estimate
        answer = f", the answer needs {reserved:,}," if reserved else ""
        named = f" ({setting})" if setting else ""
        super().__init__(
            f"The prompt is {about}{n_prompt_tokens:,} tokens{answer} and the context holds {n_ctx:,}: "
            f"shorten it, or give the model a larger context{named} if it has one.",
            param=param,
            extra={"n_prompt_tokens": n_prompt_tokens, "n_ctx": n_ctx},
        )


class ConfigError(EdgeCloudError):
    """A setting is unknown or has the wrong type; the sentence names key, file and fix."""

    default_code = "config_error"
    exit_code = 2


class Unauthorized(EdgeCloudError):
    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class BudgetExceeded(EdgeCloudError):
    status = 402
    type = "insufficient_quota"
    default_code = "budget_exceeded"
    exit_code = 4


class PermissionDenied(EdgeCloudError):
    """A Host or Origin we do not answer."""

    status = 403
    type = "permission_error"


class NoPermittedRoute(EdgeCloudError):
    """Privacy, offline mode or a key's limits removed every engine that could have served the request."""

    status = 403
    type = "permission_error"
    default_code = "no_permitted_route"
    exit_code = 3


class NotFound(EdgeCloudError):
    """What was named is not there: a model, a chat, a setting."""

    status = 404
    type = "invalid_request_error"
    default_code = "not_found"
    exit_code = 2


class ModelNotFound(NotFound):
    default_code = "model_not_found"

    def __init__(self, model: str, known: list[str] | None = None) -> None:
        hint = f" Known: {', '.join(known[:12])}." if known else ""
        super().__init__(f"There is no model named {model[:80]!r}.{hint}", param="model")


class MethodNotAllowed(EdgeCloudError):
    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class PayloadTooLarge(EdgeCloudError):
    status = 413
    type = "invalid_request_error"
    default_code = "payload_too_large"


class UnsupportedMedia(EdgeCloudError):
    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"


class NotKept(EdgeCloudError):
    """A kept answer was asked for and nothing else, and there is none (RFC 9111, `only-if-cached`)."""

    status = 504
    type = "invalid_request_error"
    default_code = "not_kept"


class ModelLoadError(EdgeCloudError):
    """A model can't be loaded: of an unknown architecture, or it does not fit in memory."""

    default_code = "model_load_failed"


class ModelFileError(ModelLoadError):
    """The file itself is at fault: missing, damaged, no model."""

    exit_code = 2


class NotSupported(EdgeCloudError):
    """The engine or model cannot do what was asked (images, tools, embeddings)."""

    status = 501
    type = "not_supported_error"
    default_code = "not_supported"


class Overloaded(EdgeCloudError):
    """The queue is full; `retry_after` says when to come back."""

    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"
    retryable = True


class Unavailable(EdgeCloudError):
    """Loading, draining or wedged."""

    status = 503
    type = "server_error"
    default_code = "unavailable"
    retryable = True


class UpstreamError(EdgeCloudError):
    """A pool or other upstream failed. `upstream_status` tells the router whose fault it is."""

    status = 502
    type = "upstream_error"
    default_code = "upstream_failed"
    retryable = True

    def __init__(
        self, message: str, *, upstream_status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.upstream_status = upstream_status


class DeadlineExceeded(EdgeCloudError):
    status = 504
    type = "timeout_error"
    default_code = "deadline_exceeded"
    exit_code = 5


class EngineFailure(EdgeCloudError):
    """A step of the engine failed; the request is lost, the engine keeps serving."""

    default_code = "engine_failed"


class StorageError(EdgeCloudError):
    """The database is locked, read-only, full or damaged, and the command cannot do its work without it."""

    default_code = "storage_failed"


class InternalError(EdgeCloudError):
    """A bug of ours, with nothing of it shown."""

    default_code = "internal_error"

    def __init__(self) -> None:
        super().__init__("Something went wrong inside edgecloud; its log says what, under this request id.")


def sentence(error: BaseException) -> EdgeCloudError:
    """The error as one a person may see: itself when it is ours, else an `InternalError`."""
    return error if isinstance(error, EdgeCloudError) else InternalError()
