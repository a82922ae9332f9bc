"""What a run is made of: conversations, arrivals, traces, contents."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.arrivals import due_seconds
from harness.errors import ConfigError
from harness.idsource import corpus_ids
from harness.prompts import load_bodies, recorded_answer, request_ids
from harness.spec import Spec
from harness.spec_workload import TraceWork
from harness.work import asks_of, chains_of, longest_request, start_times
from tests.harness.helpers import make_spec, spec_dict

TURNS = {"turns": 3, "recorded_tokens": 20}


def spec_of_turns(**workload: Any) -> Spec:
    """Two conversations of three turns."""
    return make_spec(workload=TURNS | workload, window="full_run")


def test_turns_continue_each_other() -> None:
    """Each prompt begins with the one before and the recorded answer to it."""
    spec = spec_of_turns()
    asks = asks_of(spec)
    assert chains_of(asks) == [[0, 1, 2], [3, 4, 5]]
    assert [ask.prompt_tokens for ask in asks[:3]] == [288, 340, 392]
    for ask in asks:
        prompt = request_ids(spec, 0, ask.index)
        assert len(prompt) == ask.prompt_tokens
        if ask.turn:
            before = asks[ask.index - 1]
            known = np.concatenate(
                [request_ids(spec, 0, before.index), recorded_answer(spec, 0, before)]
            )
            assert (prompt[: len(known)] == known).all()


def test_groups_share_their_context() -> None:
    """Conversation i continues the context of group i modulo groups."""
    spec = make_spec(workload={"sharing": "groups", "groups": 2, "concurrency": 4})
    prompts = [request_ids(spec, 0, index)[:256] for index in range(4)]
    assert [ask.lane for ask in asks_of(spec)] == [0, 1, 0, 1]
    assert (prompts[0] == prompts[2]).all()
    assert (prompts[0] != prompts[1]).any()


def arrival(**values: Any) -> Any:
    """A workload with this arrival."""
    return make_spec(workload={"arrival": values}, window="full_run").workload


def test_constant_arrivals() -> None:
    """One start every 1 / per_s."""
    assert due_seconds(arrival(kind="constant", per_s=4), 5, [1]) == [0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals() -> None:
    """Gaps have the mean and the standard deviation of an exponential, and depend on the key."""
    due = due_seconds(arrival(kind="poisson", per_s=10), 20001, [1, 0])
    assert due is not None
    gaps = np.diff(due)
    # standard error of both is 0.1 / sqrt(20,000) = 0.0007
    assert gaps.mean() == pytest.approx(0.1, abs=0.003)
    assert gaps.std() == pytest.approx(0.1, abs=0.003)
    assert due[0] == 0
    assert due != due_seconds(arrival(kind="poisson", per_s=10), 20001, [1, 1])


@given(st.floats(0, 20), st.floats(0.5, 20), st.floats(0.5, 30), st.integers(2, 60))
def test_ramp_arrivals(start: float, end: float, over: float, count: int) -> None:
    """Between neighbours exactly one start is due under the stated rate, also past the ramp."""
    if start == end:
        return
    work = arrival(kind="ramp", from_per_s=start, to_per_s=end, over_s=over)
    due = due_seconds(work, count, [1])
    assert due is not None

    def started(t: float) -> float:
        """Integral of the rate."""
        inside = min(t, over)
        return start * inside + (end - start) * inside**2 / (2 * over) + max(0, t - over) * end

    assert [started(t) for t in due] == pytest.approx(list(range(count)), abs=1e-6)


def trace_lines() -> list[dict[str, Any]]:
    """Three requests: the second continues the first, the third is alone."""
    return [
        {"timestamp": 1000, "input_length": 20, "output_length": 6, "hash_ids": [7, 8, 9]},
        {"timestamp": 3000, "input_length": 30, "output_length": 4, "hash_ids": [7, 8, 1, 2]},
        {"timestamp": 2000, "input_length": 8, "output_length": 5, "hash_ids": [3]},
    ]


def trace_spec(folder: Path, lines: list[Any] | None = None, **workload: Any) -> Spec:
    """A spec that replays them, 8 tokens a block."""
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines or trace_lines()) + "\n")
    raw = spec_dict(window="full_run")
    raw["workload"] = {
        "kind": "trace", "path": str(path), "block_tokens": 8, "concurrency": 2,
    } | workload  # fmt: skip
    return Spec.model_validate(raw)


def test_trace_replay(tmp_path: Path) -> None:
    """Lengths and times are the trace's, equal hash ids are equal tokens, nothing else is."""
    spec = trace_spec(tmp_path, arrival={"kind": "recorded", "speed": 2})
    asks = asks_of(spec)
    assert [(ask.prompt_tokens, ask.output_tokens) for ask in asks] == [(20, 6), (8, 5), (30, 4)]
    assert start_times(spec, 0) == [0, 0.5, 1.0]
    first, alone, second = (request_ids(spec, 0, index) for index in range(3))
    assert (first[:16] == second[:16]).all()
    assert (first[16:20] != second[16:20]).any()
    assert (first[:8] != alone).any()
    assert [ask.at_most_cached for ask in asks] == [16, 0, 16]
    assert longest_request(spec) == 34
    assert len(load_bodies(spec, "m", 0)) == 3


def test_trace_can_be_shortened(tmp_path: Path) -> None:
    """limit takes the beginning, length_scale shortens lengths and blocks alike."""
    spec = trace_spec(tmp_path, limit=2, length_scale=0.5)
    assert [ask.prompt_tokens for ask in asks_of(spec)] == [10, 15]
    assert [ask.at_most_cached for ask in asks_of(spec)] == [8, 8]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"timestamp": 1}, "trace.jsonl:1: needs timestamp, input_length"),
        (
            {"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]},
            "1 hash_ids of 8 tokens are too few for 9 tokens",
        ),
        (
            {"timestamp": -1, "input_length": 9, "output_length": 1, "hash_ids": [1, 2]},
            "negative timestamp",
        ),
        ("text", "needs timestamp"),
    ],
)
def test_bad_trace(tmp_path: Path, line: Any, words: str) -> None:
    """A broken line is named with file and number."""
    with pytest.raises(ConfigError, match=words):
        asks_of(trace_spec(tmp_path, [line]))


def test_missing_trace(tmp_path: Path) -> None:
    """A path that is not there is one line."""
    work = TraceWork(kind="trace", path=str(tmp_path / "none"), concurrency=1)
    with pytest.raises(ConfigError, match="cannot be read"):
        asks_of(make_spec(window="full_run").model_copy(update={"workload": work}))


def test_corpus_content(tmp_path: Path) -> None:
    """Prompts are stretches of the corpus that wrap around, at places of their own."""
    path = tmp_path / "corpus.npy"
    np.save(path, np.arange(1000, dtype=np.uint32))
    spec = make_spec(workload={"content": {"kind": "corpus", "path": str(path)}})
    one, two = request_ids(spec, 0, 0), request_ids(spec, 1, 0)
    assert set(np.diff(one[:256]) % 1000) == {1}
    assert one[0] != two[0]


@pytest.mark.parametrize(
    "values", [np.zeros((2, 2), int), np.zeros(0, int), np.ones(3), -np.ones(3, int)]
)
def test_bad_corpus(tmp_path: Path, values: Any) -> None:
    """What is no row of ids is refused."""
    path = tmp_path / "bad.npy"
    np.save(path, values)
    with pytest.raises(ConfigError, match="one non-empty row of whole numbers"):
        corpus_ids(str(path))


def test_file_content(tmp_path: Path) -> None:
    """Given prompts are sent as they are; a shared context is the beginning of the first line."""
    lines = [list(range(start, start + 300)) for start in (0, 1000)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    content = {"kind": "file", "path": str(path)}
    distinct = make_spec(workload={"content": content, "sharing": "distinct"})
    assert request_ids(distinct, 0, 1).tolist() == lines[1][:288]
    shared = make_spec(workload={"content": content})
    assert request_ids(shared, 0, 1).tolist() == lines[0][:256] + lines[1][256:288]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]\n", r"prompts.jsonl:1: has 2 ids, the workload needs 288"),
        ('{"a": 1}\n', r"prompts.jsonl:1: a line is a list of token ids"),
        ("[1.5]\n", "a line is a list of token ids"),
        ("", "holds no prompt"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, words: str) -> None:
    """Lines that are no prompts, or too short ones, are named."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    spec = make_spec(workload={"content": {"kind": "file", "path": str(path)}})
    with pytest.raises(ConfigError, match=words):
        request_ids(spec, 0, 0)
