"""Prompts: exact lengths, disjoint by role, the same for every arm of a pair."""

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from harness.prompts import Role, context_ids, load_bodies, request_ids, token_ids
from harness.spec_content import RandomIds, TopicIds
from harness.wire import completion_body
from tests.harness.helpers import make_spec

SPEC = make_spec()
PAGE = 64


@given(st.integers(1, 3000), st.integers(0, 5))
def test_t12_lengths_are_exact(length: int, seed: int) -> None:
    """A prompt has exactly the asked number of ids, all in range."""
    content = RandomIds(low=10, high=20)
    ids = token_ids(content, length, seed=seed, role=Role.CONTEXT, pair=0, index=0)
    assert len(ids) == length
    assert ids.min() >= 10
    assert ids.max() < 20


def test_t13_keys_give_different_prompts() -> None:
    """Seed, role, pair and index each change the very first page."""
    base = {"seed": 1, "role": Role.CONTEXT, "pair": 0, "index": 0}
    changes = [{}, {"seed": 2}, {"role": Role.WARMUP}, {"pair": 1}, {"index": 1}]
    pages = {
        token_ids(RandomIds(), PAGE, **(base | change)).tobytes()  # type: ignore[arg-type]
        for change in changes
    }
    assert len(pages) == len(changes)


def test_requests_of_a_pair_share_the_context_and_nothing_more() -> None:
    """Shared: equal up to the context's end, then different at once; distinct: from the start."""
    one, two = request_ids(SPEC, 0, 0), request_ids(SPEC, 0, 1)
    assert len(one) == SPEC.workload.prompt_tokens()
    assert (one[:256] == two[:256]).all()
    assert (one[:256] == context_ids(SPEC, 0, 0)).all()
    assert (one[256:] != two[256:]).any()
    distinct = make_spec(workload={"sharing": "distinct"})
    first, second = request_ids(distinct, 0, 0), request_ids(distinct, 0, 1)
    assert (first[:PAGE] != second[:PAGE]).any()


def test_same_bodies_for_every_arm_of_a_pair() -> None:
    """Bodies depend on spec and pair only, so both arms get the same bytes."""
    assert load_bodies(SPEC, "m", 0) == load_bodies(SPEC, "m", 0)
    assert load_bodies(SPEC, "m", 0) != load_bodies(SPEC, "m", 1)


def test_body_asks_for_exact_greedy_streams() -> None:
    """The body carries ids, greedy sampling, no early stop, and usage in every chunk."""
    body = orjson.loads(completion_body("m", np.array([5, 6], dtype=np.int64), 9))
    assert body["prompt"] == [5, 6]
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (9, 0, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_topics_come_in_segments() -> None:
    """Neighbouring tokens share a topic for at least segment_min tokens, and topics vary."""
    content = TopicIds(
        kind="topics", low=100, topics=8, ids_per_topic=4, segment_min=20, segment_max=40
    )
    ids = token_ids(content, 4000, seed=1, role=Role.CONTEXT, pair=0, index=0)
    topic = (ids - 100) // 4
    assert set(topic) == set(range(8))
    changes = np.flatnonzero(np.diff(topic)) + 1
    assert np.diff(changes).min() >= 20
