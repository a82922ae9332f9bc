"""Reading a unified diff with a header, and applying it exactly: no fuzz, no offsets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
HEADERS = ("Title", "Why", "Drop when")


class PatchError(Exception):
    """A patch that is malformed or does not fit. The message is one line."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """start: first line, 1-based, in the old file. old, new: lines with their ends."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """path: below the folder that holds the package. created: the file is new."""

    path: str
    created: bool
    hunks: tuple[Hunk, ...]

    def apply(self, text: str) -> str:
        """The changed text. Raises PatchError where a hunk's lines are not found in their place."""
        lines, done, result = text.splitlines(keepends=True), 0, list[str]()
        for hunk in self.hunks:
            at = max(hunk.start - 1, 0)
            if tuple(lines[at : at + len(hunk.old)]) != hunk.old:
                raise PatchError(f"{self.path}, line {hunk.start}: not the text the patch expects")
            result += [*lines[done:at], *hunk.new]
            done = at + len(hunk.old)
        return "".join(result + lines[done:])


@dataclass(frozen=True, slots=True)
class Patch:
    """One file of this folder. header: the values of HEADERS, each on one line."""

    name: str
    header: dict[str, str]
    files: tuple[FileDiff, ...]


def read(path: Path) -> Patch:
    """Parse a patch file. Raises PatchError."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    header = _header(lines[:first], path.name)
    return Patch(path.stem, header, tuple(_files(lines[first:], path.name)))


def _header(lines: list[str], name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    key = ""
    for line in lines:
        if line.startswith("  "):
            found[key] += " " + line.strip()
        elif line.strip():
            key, _, value = line.partition(":")
            found[key] = value.strip()
    if tuple(found) != HEADERS:
        raise PatchError(f"{name}: the header must have {', '.join(HEADERS)}, in this order")
    return found


def _files(lines: list[str], name: str) -> list[FileDiff]:
    files = []
    while lines:
        if len(lines) < 3 or not lines[0].startswith("--- ") or not lines[1].startswith("+++ b/"):
            raise PatchError(f"{name}: expected a file header, found {lines[0].strip()!r}")
        end = next((i for i, x in enumerate(lines) if i and x.startswith("--- ")), len(lines))
        target = lines[1].removeprefix("+++ b/").strip()
        created = lines[0].split()[1] == "/dev/null"
        files.append(FileDiff(target, created, tuple(_hunks(lines[2:end], name))))
        lines = lines[end:]
    return files


def _hunks(lines: list[str], name: str) -> list[Hunk]:
    hunks = []
    while lines:
        match = _HUNK.match(lines[0])
        if match is None:
            raise PatchError(f"{name}: expected a hunk, found {lines[0].strip()!r}")
        end = next((i for i, x in enumerate(lines) if i and x.startswith("@@ ")), len(lines))
        body = lines[1:end]
        old = tuple(x[1:] for x in body if x[0] in " -")
        new = tuple(x[1:] for x in body if x[0] in " +")
        if (len(old), len(new)) != (int(match[2] or 1), int(match[4] or 1)):
            raise PatchError(f"{name}: hunk {match[0]} has other lengths than it says")
        hunks.append(Hunk(int(match[1]), old, new))
        lines = lines[end:]
    return hunks
