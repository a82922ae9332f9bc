"""Server-sent events from arbitrary byte pieces.

Written by hand because line iterators of HTTP clients cap the length of a line, and because the
receive time must be taken per socket read, before any parsing.
"""


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

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of each event that this piece completes, in order.

        Takes time in proportion to the piece alone, however long the line is that it continues.
        """
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in piece:
            self._line += piece
            return []
        lines = piece.split(b"\n")
        if self._line:
            self._line += lines[0]
            lines[0] = bytes(self._line)
            self._line.clear()
        self._line += lines.pop()
        return self._take_lines(lines)

    def _take_lines(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if line:
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data.append(value.removeprefix(b" "))
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
