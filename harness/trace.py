"""Reading a Mooncake trace: when requests come, how long they are, and what they share."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.spec_workload import TraceWork


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace, lengths scaled. Block i of the prompt is that of hash_ids[i]."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


def block_length(work: TraceWork) -> int:
    """Tokens of one block after scaling."""
    return max(1, round(work.block_tokens * work.length_scale))


@lru_cache(maxsize=4)
def read_trace(work: TraceWork) -> tuple[TraceRequest, ...]:
    """All requests, in order of time. Raises ConfigError with file and line."""
    path = Path(work.path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError([f"{path}: cannot be read ({reason}), set workload.path"]) from None
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    found = [_request(work, f"{path}:{number}", line) for number, line in filled[: work.limit]]
    if not found:
        raise ConfigError([f"{path}: holds no request"])
    return tuple(sorted(found, key=lambda request: request.at_s))


def _request(work: TraceWork, where: str, line: str) -> TraceRequest:
    try:
        entry: dict[str, Any] = json.loads(line)
        at_s = float(entry["timestamp"]) / 1e3
        blocks = tuple(int(block) for block in entry["hash_ids"])
        lengths = int(entry["input_length"]), int(entry["output_length"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            [f"{where}: needs timestamp, input_length, output_length and hash_ids ({error!r})"]
        ) from None
    if at_s < 0 or lengths[0] < 1 or lengths[1] < 1 or min(blocks, default=0) < 0:
        raise ConfigError([f"{where}: a length below 1, or a negative timestamp or hash id"])
    if lengths[0] > len(blocks) * work.block_tokens:
        raise ConfigError(
            [f"{where}: {len(blocks)} hash_ids of {work.block_tokens} tokens are too few for "
             f"{lengths[0]} tokens, set workload.block_tokens"]
        )  # fmt: skip
    # below two tokens there is no inter-token latency
    scaled = [max(2, round(length * work.length_scale)) for length in lengths]
    fitting = min(scaled[0], len(blocks) * block_length(work))
    return TraceRequest(at_s, fitting, scaled[1], blocks)


def most_cached(work: TraceWork) -> list[int]:
    """Per request, the longest leading part that any other request has, in tokens.

    More than this cannot come from the cache, whatever the order in which requests arrive.
    """
    requests, size = read_trace(work), block_length(work)
    seen: dict[tuple[int, ...], int] = {}
    for request in requests:
        for end in range(1, len(request.hash_ids) + 1):
            beginning = request.hash_ids[:end]
            seen[beginning] = seen.get(beginning, 0) + 1
    bounds: list[int] = []
    for request in requests:
        shared = 0
        while shared < len(request.hash_ids) and seen[request.hash_ids[: shared + 1]] > 1:
            shared += 1
        bounds.append(min(shared * size, request.input_tokens - 1))
    return bounds
