"""What a user sees while a campaign runs: one live line on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TextIO

QUIET_INTERVAL_S = 10.0


class Progress:
    """The only part of a run that prints."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._live = self._out.isatty()
        self._started = time.monotonic()
        self._last_plain = 0.0
        self._line_open = False

    def phase(self, name: str, detail: str = "") -> None:
        """A new phase begins."""
        self._end_line()
        self._last_plain = time.monotonic()
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        self._print(f"[{minutes:2d}:{seconds:02d}] {name:9s} {detail}".rstrip())

    def load(self, tokens: int, expected: int, tok_s: float, running: int) -> None:
        """How far the current load is; called a few times a second."""
        share = tokens / expected if expected else 0.0
        text = f"{share:5.0%}  {tokens}/{expected} tokens  {tok_s:8.1f} tok/s  {running} running"
        if self._live:
            self._out.write(f"\r\x1b[2K        load      {text}")
            self._out.flush()
            self._line_open = True
        elif time.monotonic() - self._last_plain >= QUIET_INTERVAL_S:
            self._last_plain = time.monotonic()
            self._print(f"        load      {text}")

    def say(self, text: str) -> None:
        """Lines outside any phase: results and problems."""
        self._end_line()
        self._print(text)

    def _end_line(self) -> None:
        if self._line_open:
            self._out.write("\n")
            self._line_open = False

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)
