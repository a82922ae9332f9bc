"""A copy of the installed SGLang that differs in one place, made of links to the real one."""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path


def doctored_sglang(folder: Path, file: str, old: str, new: str) -> dict[str, str]:
    """Replace `old` by `new` in one file of a linked copy under `folder`.

    file: path below the package, or "METADATA". Returns the environment that puts the copy first.
    """
    package = Path(next(iter(find_spec("sglang").submodule_search_locations)))
    info = Path(str(distribution("sglang")._path))
    shutil.copytree(info, folder / info.name)
    if file == "METADATA":
        _edit(folder / info.name / file, old, new)
        (folder / "sglang").symlink_to(package)
    else:
        _link_tree(package, folder / "sglang", Path(file))
        _edit(folder / "sglang" / file, old, new)
    return {"PYTHONPATH": str(folder)}


def _link_tree(source: Path, target: Path, file: Path) -> None:
    """Link the children of `source`, except along the path to `file`, which is copied."""
    target.mkdir()
    head, *rest = file.parts
    for child in source.iterdir():
        if child.name == "__pycache__":
            _link_compiled(child, target / child.name)
        elif child.name != head:
            (target / child.name).symlink_to(child)
        elif rest:
            _link_tree(child, target / head, Path(*rest))
        else:
            shutil.copy(child, target / head)


def _link_compiled(source: Path, target: Path) -> None:
    """Bytecode is found beside a link; what does not fit its source any more is not used."""
    target.mkdir()
    for child in source.iterdir():
        (target / child.name).symlink_to(child)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {path.name}"
    path.write_text(text.replace(old, new), encoding="utf-8")
