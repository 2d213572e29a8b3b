"""What chat and completion requests to other OpenAI-compatible servers have in common."""

from __future__ import annotations

import json
from typing import Any

from edgecloud.types import ChatRequest, Constraint


def encode_common(request: ChatRequest, model: str, stream: bool) -> dict[str, Any]:
    """The fields that chat and completion bodies share; extensions only where they were asked for."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "seed": sampling.seed,
        "max_tokens": request.max_tokens,
        "stop": list(request.stop) or None,
        "stop_token_ids": list(request.stop_token_ids) or None,
        "min_tokens": request.min_tokens or None,
        "ignore_eos": request.ignore_eos or None,
        "priority": request.priority or None,
        "n": request.n if request.n > 1 else None,
        "stream_options": {"include_usage": True} if stream else None,
    }
    if sampling.repeat_penalty != 1.0:
        # llama.cpp's name and vLLM's.
        fields |= {"repeat_penalty": sampling.repeat_penalty, "repetition_penalty": sampling.repeat_penalty}
    match request.constraint:
        case Constraint("json"):
            fields["response_format"] = {"type": "json_object"}
        case Constraint("schema", source):
            schema = {"name": "answer", "strict": True, "schema": json.loads(source)}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        case Constraint("grammar", source):
            # llama.cpp's name, SGLang's and vLLM's: who knows none of them would answer with anything.
            fields |= {"grammar": source, "ebnf": source, "structured_outputs": {"grammar": source}}
        case Constraint("regex", source):
            fields |= {"regex": source, "structured_outputs": {"regex": source}}
    return {
        "model": model,
        "stream": stream,
        **{key: value for key, value in fields.items() if value is not None},
    }
