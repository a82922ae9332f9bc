"""The event parser on every way a network may cut a stream."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from harness.sse import SseParser

STREAM = (
    b": comment\r\n"
    b'data: {"a":1}\r\n\r\n'
    b"event: x\nid: 7\ndata:no space\n\n"
    b"data: two\ndata: lines\n\n"
    b"\n\n"
    b"data: caf\xc3\xa9\r\r"
    b"data\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a":1}', b"no space", b"two\nlines", b"caf\xc3\xa9", b"", b"[DONE]"]


def parse(pieces: list[bytes]) -> list[bytes]:
    """All events of a stream that arrives in these pieces."""
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def test_whole_stream() -> None:
    """Comments and other fields are skipped, line ends may be LF, CRLF or CR."""
    assert parse([STREAM]) == EVENTS


def test_t19_split_at_every_byte() -> None:
    """Two pieces cut at any byte, and single bytes, give the same events."""
    for cut in range(len(STREAM) + 1):
        assert parse([STREAM[:cut], STREAM[cut:]]) == EVENTS
    assert parse([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_t19_split_anywhere(cuts: list[int]) -> None:
    """Any number of cuts, empty pieces included, gives the same events."""
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(pieces) == EVENTS


def test_t19_line_of_two_megabytes() -> None:
    """A line longer than any client's line limit arrives whole."""
    line = b"x" * 2_000_000
    stream = b"data: " + line + b"\n\n"
    pieces = [stream[i : i + 65536] for i in range(0, len(stream), 65536)]
    assert parse(pieces) == [line]


EVENT = st.lists(st.binary(max_size=30).map(lambda b: b.translate(None, b"\r\n")), min_size=1)


@given(
    st.lists(st.tuples(EVENT, st.sampled_from([b"", b": c", b"id: 1", b"event"]))),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 1000), max_size=20),
)
def test_t19_generated_streams(
    events: list[tuple[list[bytes], bytes]], end: bytes, cuts: list[int]
) -> None:
    """Whatever the data, the lines between, the line ends and the cuts: the data comes back."""
    stream = b""
    for lines, other in events:
        stream += b"".join(b"data: " + line + end for line in lines)
        stream += (other + end if other else b"") + end
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(pieces) == [b"\n".join(lines) for lines, _ in events]


def test_t19_long_line_in_small_pieces() -> None:
    """Two megabytes in pieces of 64 bytes cost one pass, not one per piece."""
    line = b"y" * 2_000_000
    stream = b"data:" + line + b"\r\n\r\n"
    assert parse([stream[i : i + 64] for i in range(0, len(stream), 64)]) == [line]


def test_unfinished_event_is_dropped() -> None:
    """An event that the end of the stream cuts off is not reported."""
    assert parse([b"data: whole\n\ndata: half\n"]) == [b"whole"]


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_survived(pieces: list[bytes]) -> None:
    """No byte sequence raises, and the cutting never matters."""
    assert parse(pieces) == parse([b"".join(pieces)])
