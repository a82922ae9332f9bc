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


def test_unfinished_event_is_dropped() -> None:
    """An event that the end of the stream cuts off is not reported."""
    assert parse([b"data: whole\n\ndata: half\n"]) == [b"whole"]


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_survived(pieces: list[bytes]) -> None:
    """No byte sequence raises, and the cutting never matters."""
    assert parse(pieces) == parse([b"".join(pieces)])
