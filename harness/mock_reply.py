"""The events of one scripted reply, in the format of the endpoint that was asked."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import orjson

from harness.mock_script import MockScript, MockState

STALL_S = 3600.0
DONE = b"[DONE]"
# faults that the whole reply or the transport shows, not its second half
_WHOLE_REPLY = ("none", "buffered", "no-done", "http-500", "http-503-once")


class Dropped(Exception):
    """The script breaks the connection here."""


@dataclass(frozen=True)
class Asked:
    """One request: its prompt ids, the tokens wanted, the endpoint's name, its fault."""

    prompt: list[int]
    wanted: int
    wire: str
    fault: str


def read_request(wire: str, body: dict[str, Any], fault: str) -> Asked:
    """What a body asks for. Raises KeyError for one that names no prompt or no length."""
    if wire == "generate":
        return Asked(body["input_ids"], body["sampling_params"]["max_new_tokens"], wire, fault)
    prompt = body["input_ids"] if wire == "chat" else body["prompt"]
    return Asked(prompt, body["max_tokens"], wire, fault)


async def reply_events(state: MockState, asked: Asked) -> AsyncIterator[bytes]:
    """The data of each event, paced by the script. Raises Dropped where the connection breaks."""
    script, sent, ids = state.script, 0, list[int]()
    cached = state.match_and_insert(asked.prompt)
    write = _Writer(script, asked, cached)
    clock = asyncio.get_running_loop().time
    slow = script.cold_factor if state.served <= script.cold_requests else 1.0
    due = clock() + slow * script.ttft_ms / 1e3
    sizes = cycle(script.chunk_sizes)
    if script.empty_first_chunk:
        yield write.empty()
    while sent < asked.wanted:
        await asyncio.sleep(max(0.0, due - clock()))
        due += slow * script.itl_ms / 1e3
        if asked.fault not in _WHOLE_REPLY and sent >= asked.wanted // 2:
            async for data in _fault(write, asked.fault, sent):
                yield data
            return
        step = min(next(sizes), asked.wanted - sent)
        state.count_decode_step(len(asked.prompt) + sent)
        new = [_output_id(script, asked.prompt, sent + i) for i in range(step)]
        sent += step
        ids += new
        yield write.chunk(Chunk(ids if script.cumulative else new, step, sent))
    state.count_request(len(asked.prompt), sent, cached)
    if asked.wire != "generate" and script.usage != "none":
        yield write.final_usage(sent)
    if asked.fault != "no-done":
        yield DONE


async def _fault(write: "_Writer", fault: str, sent: int) -> AsyncIterator[bytes]:
    """What comes instead of the second half of the reply."""
    if fault == "drop":
        raise Dropped
    if fault == "eof":
        return
    if fault == "in-band-error":
        yield orjson.dumps({"error": {"message": "scripted <b>failure</b>", "code": 500}})
    elif fault == "garbage":
        yield b"{not json"
    elif fault == "stall":
        await asyncio.sleep(STALL_S)
    elif fault == "die":
        os._exit(9)
    elif fault == "restart":
        yield write.chunk(Chunk([1], 1, 1))
    else:
        reason = {"early-stop": "stop", "short": "length", "abort": "abort"}[fault]
        yield write.chunk(Chunk([], 0, sent, reason))
    yield DONE


def _output_id(script: MockScript, prompt: list[int], position: int) -> int:
    return (prompt[-1] + 7 * position + (position >= script.diverge_at)) % 1000


class Chunk(NamedTuple):
    """New ids, their number, the reply's tokens so far, and why it ends here."""

    ids: list[int]
    tokens: int
    sent: int
    reason: str | None = None


class _Writer:
    """Writes the events of one reply."""

    def __init__(self, script: MockScript, asked: Asked, cached: int) -> None:
        self.script, self.asked, self.cached = script, asked, cached
        formats = {
            "completions": self._completion,
            "chat": self._chat,
            "generate": self._generate,
        }
        self._format = formats[asked.wire]

    def chunk(self, chunk: Chunk) -> bytes:
        """A chunk of the output; the last one says why it is the last."""
        if chunk.reason is None and chunk.sent == self.asked.wanted:
            chunk = chunk._replace(reason="length")
        return self._encode(self._format(chunk))

    def empty(self) -> bytes:
        """A chunk before any token; chat servers send the role alone."""
        if self.asked.wire == "chat":
            return self._encode({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        return self._encode(self._format(Chunk([], 0, 0)))

    def final_usage(self, sent: int) -> bytes:
        """The usage event that ends an OpenAI stream."""
        usage = self._usage(sent) | self._details()
        return self._encode({"choices": [], "usage": usage})

    def _completion(self, chunk: Chunk) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": " t" * chunk.tokens, "finish_reason": chunk.reason}
        if self.script.token_ids:
            choice["token_ids"] = chunk.ids
        return self._with_usage({"choices": [choice]}, chunk.sent)

    def _chat(self, chunk: Chunk) -> dict[str, Any]:
        delta = {self.script.text_field: " t" * chunk.tokens}
        choice = {"delta": delta, "finish_reason": chunk.reason}
        return self._with_usage({"choices": [choice]}, chunk.sent)

    def _generate(self, chunk: Chunk) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "prompt_tokens": len(self.asked.prompt),
            "completion_tokens": chunk.sent,
            "finish_reason": chunk.reason and {"type": chunk.reason, "length": chunk.sent},
        }
        reported = self._reported()
        if reported is not None:
            meta["cached_tokens"] = reported
        return {"text": " t" * chunk.tokens, "output_ids": chunk.ids, "meta_info": meta}

    def _with_usage(self, event: dict[str, Any], sent: int) -> dict[str, Any]:
        return event | {"usage": self._usage(sent)} if self.script.usage == "continuous" else event

    def _usage(self, sent: int) -> dict[str, Any]:
        prompt = len(self.asked.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sent,
            "total_tokens": prompt + sent,
        }

    def _details(self) -> dict[str, Any]:
        reported = self._reported()
        details = None if reported is None else {"cached_tokens": reported}
        return {"prompt_tokens_details": details}

    def _reported(self) -> int | None:
        """Cached tokens as the script has them reported."""
        if self.script.cached == "absent":
            return None
        value = self.cached if self.script.cached == "radix" else int(self.script.cached)
        return None if value == 0 and self.script.cached_zero_absent else value

    def _encode(self, event: dict[str, Any]) -> bytes:
        if self.script.pad_bytes:
            event["pad"] = "x" * self.script.pad_bytes
        return orjson.dumps(event)
