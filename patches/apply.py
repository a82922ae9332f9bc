"""`python patches/apply.py DEST`: a patched copy of the installed SGLang under DEST.

The installed package is never touched. Put DEST first on PYTHONPATH to run the copy. `--readme`
rewrites README.md from the patches' headers instead.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import shutil
import sys
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from readme import README, render  # noqa: E402
from unified import FileDiff, Patch, PatchError, read  # noqa: E402

VERSION = "0.5.23"
FOLDER = HERE / f"sglang-{VERSION}"


def patches() -> list[Patch]:
    """Every patch for VERSION, in the order of their numbers. Raises PatchError."""
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]


def patched_copy(dest: Path) -> Path:
    """Copy the installed package to `dest`/sglang and patch the copy; all of it or nothing.

    Raises PatchError: another version, files that were changed since their installation, an
    existing destination, a patch that does not fit.
    """
    installed = _installed()
    info = Path(str(installed._path))  # type: ignore[attr-defined]
    source = info.parent / "sglang"
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise PatchError(f"{dest} exists and is not an empty folder; give another one")
    if source in (dest.resolve(), *dest.resolve().parents):
        raise PatchError(f"{dest} lies inside the installed package")
    todo = patches()
    _require_untouched(installed, info.parent, [f for p in todo for f in p.files])
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=".sglang-") as scratch:
        work = Path(scratch) / "copy"
        # with its bytecode, which Python compiles anew where a patch changes the source
        shutil.copytree(source, work / "sglang")
        shutil.copytree(info, work / info.name)
        for patch in todo:
            for file in patch.files:
                _apply(file, work)
        if dest.exists():
            dest.rmdir()
        work.rename(dest)
    return dest


def _installed() -> Distribution:
    try:
        found = distribution("sglang")
    except PackageNotFoundError:
        raise PatchError(f"sglang is not installed; run: pip install sglang=={VERSION}") from None
    if found.version != VERSION:
        raise PatchError(f"these patches are for sglang {VERSION}, found {found.version}")
    return found


def _require_untouched(installed: Distribution, root: Path, files: list[FileDiff]) -> None:
    """Compare what will be patched with the hashes of the wheel."""
    rows = csv.reader((installed.read_text("RECORD") or "").splitlines())
    recorded = {row[0]: row[1] for row in rows}
    for file in files:
        if file.created:
            if (root / file.path).exists():
                raise PatchError(f"{file.path} exists in the installed package: patched already?")
            continue
        path = root / file.path
        if not path.is_file():
            raise PatchError(f"{file.path} is missing in the installed package")
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
        if recorded.get(file.path) != "sha256=" + digest.decode().rstrip("="):
            raise PatchError(f"{file.path} differs from the wheel; reinstall sglang=={VERSION}")


def _apply(file: FileDiff, root: Path) -> None:
    path = root / file.path
    text = "" if file.created else path.read_text(encoding="utf-8")
    path.write_text(file.apply(text), encoding="utf-8")


def main() -> int:
    """0 when done, 1 with one line when refused."""
    parser = argparse.ArgumentParser(prog="python patches/apply.py", description=__doc__)
    parser.add_argument("dest", nargs="?", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--readme", action="store_true", help="rewrite README.md and stop")
    options = parser.parse_args()
    if options.readme == (options.dest is not None):
        parser.error("give a destination folder, or --readme")
    try:
        if options.readme:
            README.write_text(render(VERSION, patches()), encoding="utf-8")
            return 0
        dest = patched_copy(options.dest)
    except (PatchError, OSError) as error:
        sys.stderr.write(f"patches: {error}\n")
        return 1
    sys.stdout.write(f"patched copy in {dest}; run it with PYTHONPATH={dest.resolve()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
