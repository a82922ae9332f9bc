"""The three request formats the client speaks: OpenAI completions and chat, SGLang's own.

A body is a greedy streamed request that must not stop early, with its prompt as token ids: lengths
are exact and nothing is tokenised while load is timed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.generate_stream import take_generate_event
from harness.record import RequestRecord
from harness.stream import take_event

TokenIds = NDArray[np.int64]
Fields = dict[str, Any]


@dataclass(frozen=True)
class Wire:
    """Where a request goes, how it is written, and what an event does to its record."""

    name: str
    path: str
    fields: Callable[[str, TokenIds, int], Fields]
    take: Callable[[RequestRecord, bytes, int], None]

    def body(self, model: str, prompt: TokenIds, max_tokens: int) -> "RequestBody":
        """A greedy request for `max_tokens` tokens on `prompt`, encoded."""
        fields = self.fields(model, prompt, max_tokens)
        body = RequestBody(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY))
        body.wire = self
        return body


class RequestBody(bytes):
    """The bytes of a request, which know for which endpoint they were written."""

    wire: Wire


def wire_of(body: bytes) -> Wire:
    """The format of a body; plain bytes are a completion."""
    return body.wire if isinstance(body, RequestBody) else COMPLETIONS


def _openai(model: str, max_tokens: int) -> Fields:
    # continuous usage gives the tokens of every chunk
    return {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _completion_fields(model: str, prompt: TokenIds, max_tokens: int) -> Fields:
    """Token ids come back for the comparison of greedy outputs."""
    return _openai(model, max_tokens) | {"prompt": prompt, "return_token_ids": True}


def _chat_fields(model: str, prompt: TokenIds, max_tokens: int) -> Fields:
    """The prompt as SGLang's `input_ids`, past the chat template; the message must only be there.

    SGLang streams no token ids on chat, so none are asked for.
    """
    messages = [{"role": "user", "content": "."}]
    return _openai(model, max_tokens) | {"messages": messages, "input_ids": prompt}


def _generate_fields(model: str, prompt: TokenIds, max_tokens: int) -> Fields:
    """For a server started with --incremental-streaming-output."""
    del model  # the native endpoint serves one model
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling, "stream": True}


COMPLETIONS = Wire("completions", "/v1/completions", _completion_fields, take_event)
CHAT = Wire("chat", "/v1/chat/completions", _chat_fields, take_event)
GENERATE = Wire("generate", "/generate", _generate_fields, take_generate_event)
WIRES = {wire.name: wire for wire in (COMPLETIONS, CHAT, GENERATE)}


def completion_body(model: str, prompt: TokenIds, max_tokens: int) -> bytes:
    """Body of a streamed `/v1/completions` request."""
    return bytes(COMPLETIONS.body(model, prompt, max_tokens))
