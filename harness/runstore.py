"""Finished runs on disk, one file each, so that an interruption loses at most the run it hit."""

import gzip
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import orjson

from harness.codec import CodecError, decode, encode
from harness.errors import HarnessError, ResultError
from harness.runrecord import ArmRun

SUFFIX = ".json.gz"


class RunStore:
    """`<result>/runs/`: a run is there whole or not at all."""

    def __init__(self, result: Path) -> None:
        self.folder = result / "runs"

    def save(self, run: ArmRun) -> None:
        """Write one run; a run of the same place and pair is replaced. Raises HarnessError."""
        name = f"pair-{run.pair + 1:03d}-{run.position + 1}-{run.arm}{SUFFIX}"
        packed = gzip.compress(orjson.dumps(encode(run)), compresslevel=1, mtime=0)
        write_whole(self.folder / name, packed)

    def load(self) -> list[ArmRun]:
        """All runs in the order they were done. Raises ResultError for a file that is damaged."""
        paths = sorted(self.folder.glob(f"pair-*{SUFFIX}")) if self.folder.is_dir() else []
        return [_read(path) for path in paths]

    def drop(self, runs: Sequence[ArmRun]) -> None:
        """Remove runs that will be done again."""
        for run in runs:
            for path in self.folder.glob(f"pair-{run.pair + 1:03d}-*-{run.arm}{SUFFIX}"):
                path.unlink()


def _read(path: Path) -> ArmRun:
    try:
        return decode(ArmRun, orjson.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError, CodecError) as error:
        raise ResultError(
            f"{path}: is no record of this harness version ({error}); delete it and resume"
        ) from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Its folder is made if need be. Raises HarnessError and leaves no draft when that fails.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        with draft.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise HarnessError(f"{path}: cannot be written ({error.strerror or error})") from None
