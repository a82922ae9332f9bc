"""Ending a server that would otherwise run without what it was told to run."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def die(message: str) -> NoReturn:
    """Print one line and take the whole server down.

    A scheduler process that merely exits would leave the HTTP process up and hanging, so the parent
    gets the signal that SGLang itself uses for a failed child.
    """
    sys.stderr.write(f"sglang_spin: {message}\n")
    sys.stderr.flush()
    os.kill(os.getppid(), signal.SIGQUIT)
    raise SystemExit(1)
