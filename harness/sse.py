"""Server-sent events from arbitrary byte pieces.

Written by hand because line iterators of HTTP clients cap the length of a line, and because the
receive time must be taken per socket read, before any parsing.
"""

from collections.abc import Iterator


class SseParser:
    """Splits a byte stream into the `data` payloads of its events.

    Handles LF, CRLF and CR line ends cut anywhere, comments, `data:` without a space, multi-line
    data, and ignores other fields. An event that the stream's end leaves unfinished is dropped, as
    the standard demands.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of each event that this piece completes."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        *complete, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for part in complete:
            self._line += part
            event = self._take_line()
            if event is not None:
                yield event
        self._line += rest

    def _take_line(self) -> bytes | None:
        line = bytes(self._line)
        self._line.clear()
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
