"""The result folder: never overwritten, files whole or absent, `latest` points to the newest."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, ResultError
from harness.runstore import write_whole

LATEST = "latest"


class ResultFolder:
    """One campaign's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, name: str) -> "ResultFolder":
        """`<root>/<name>/<UTC stamp>/`, new. Raises HarnessError when it cannot be made."""
        return cls(_create(root / name, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")))

    @classmethod
    def existing(cls, path: Path) -> "ResultFolder":
        """A folder made before. Raises ResultError when it is none."""
        if not (path / "spec.yaml").is_file():
            raise ResultError(
                f"{path}: is no result folder (it has no spec.yaml), give one as "
                "results/quickstart/latest"
            )
        return cls(path.resolve())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep another harness from writing here. Raises HarnessError when one does."""
        try:
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise HarnessError(f"{self.path}: cannot be written ({error.strerror})") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise HarnessError(f"{self.path}: another harness is at work here") from None
            yield

    def write_text(self, name: str, text: str) -> None:
        """Write one file."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one file."""
        write_whole(self.path / name, data)

    def write_json(self, name: str, value: Any) -> None:
        """Write one file; NaN has no place in a result and raises ValueError."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """A JSON file, None when it is not there. Raises ResultError when it is damaged."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ResultError(
                f"{path}: cannot be read ({error}); delete it, `harness report` writes it anew"
            ) from None

    def point_latest(self) -> None:
        """Make `<root>/<name>/latest` a link to this folder, in one step."""
        link = self.path.parent / LATEST
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
        raise HarnessError(
            f"{parent}: cannot be made ({error.strerror}), give another folder with --results"
        ) from None
    raise HarnessError(f"{parent} already holds 999 results of {stamp}")
