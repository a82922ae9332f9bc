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

Body = Callable[[str, NDArray[np.int64], int], bytes]
Take = Callable[[RequestRecord, bytes, int], None]


@dataclass(frozen=True)
class Wire:
    """Where a request goes, how it is written, and what an event does to its record."""

    name: str
    path: str
    body: Body
    take: Take


def _encode(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _openai(model: str, max_tokens: int) -> dict[str, Any]:
    # continuous usage gives the tokens of every chunk
    return {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def completion_body(model: str, prompt: NDArray[np.int64], max_tokens: int) -> bytes:
    """`/v1/completions`; token ids come back for the comparison of greedy outputs."""
    return _encode(_openai(model, max_tokens) | {"prompt": prompt, "return_token_ids": True})


def chat_body(model: str, prompt: NDArray[np.int64], max_tokens: int) -> bytes:
    """`/v1/chat/completions` with the prompt as SGLang's `input_ids`, past the chat template.

    The message only has to be there. SGLang streams no token ids on chat, so none are asked for.
    """
    messages = [{"role": "user", "content": "."}]
    return _encode(_openai(model, max_tokens) | {"messages": messages, "input_ids": prompt})


def generate_body(model: str, prompt: NDArray[np.int64], max_tokens: int) -> bytes:
    """`/generate`, for a server started with --incremental-streaming-output."""
    del model  # the native endpoint serves one model
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    return _encode({"input_ids": prompt, "sampling_params": sampling, "stream": True})


COMPLETIONS = Wire("completions", "/v1/completions", completion_body, take_event)
CHAT = Wire("chat", "/v1/chat/completions", chat_body, take_event)
GENERATE = Wire("generate", "/generate", generate_body, take_generate_event)
WIRES = {wire.name: wire for wire in (COMPLETIONS, CHAT, GENERATE)}
