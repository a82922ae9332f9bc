"""The result folder: never overwritten, and `latest` points to the newest."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import HarnessError


class ResultFolder:
    """`<root>/<name>/<UTC stamp>/`, created new."""

    def __init__(self, root: Path, name: str) -> None:
        """Raises HarnessError when the folder cannot be made."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        self.path = _create(root / name, stamp)

    def write_text(self, name: str, text: str) -> None:
        """Write one file."""
        (self.path / name).write_text(text, encoding="utf-8")

    def write_json(self, name: str, value: Any) -> None:
        """Write one file; NaN has no place in a result and raises ValueError."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def point_latest(self) -> None:
        """Make `<root>/<name>/latest` a link to this folder, in one step."""
        link = self.path.parent / "latest"
        new = self.path.parent / f".latest-{os.getpid()}"
        new.unlink(missing_ok=True)
        new.symlink_to(self.path.name)
        new.replace(link)


def _create(parent: Path, stamp: str) -> Path:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            path = parent / (stamp if attempt == 1 else f"{stamp}-{attempt}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise HarnessError(f"cannot create {parent}: {error.strerror}") from None
    raise HarnessError(f"{parent} already holds 999 results of {stamp}")
