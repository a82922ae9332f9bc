"""Applying the patches: all of them to a copy, never in place, and refusals in one line."""

from __future__ import annotations

import filecmp
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from sglang_spin.engine.patched import PATCHED
from tests.engine.doctored import doctored_sglang
from tests.patches.conftest import ROOT, Applied

sys.path.insert(0, str(ROOT / "patches"))

from apply import VERSION, patches
from readme import README, render
from unified import PatchError, read

INSTALLED = Path(next(iter(find_spec("sglang").submodule_search_locations))).parent  # type: ignore[union-attr]
Apply = Callable[..., Applied]


def _changed() -> set[str]:
    return {file.path for patch in patches() for file in patch.files}


def test_only_what_the_patches_name_differs(patched: Path) -> None:
    """The copy is the installed package but for the files in the diffs, which all differ."""
    for path in patched.rglob("*.py"):
        name = str(path.relative_to(patched))
        same = (INSTALLED / name).exists() and filecmp.cmp(path, INSTALLED / name, shallow=False)
        assert same == (name not in _changed()), name


def test_the_installed_package_is_left_alone(patched: Path) -> None:
    """Nothing in the installed package is newer than the copy's creation, and no seam is in it."""
    assert not (INSTALLED / "sglang/srt/plugins/seams.py").exists()
    assert (patched / "sglang/srt/plugins/seams.py").exists()


def test_the_page_is_generated_from_the_headers() -> None:
    """patches/README.md is what `apply.py --readme` writes."""
    assert README.read_text(encoding="utf-8") == render(VERSION, patches())


def test_the_ledger_knows_the_patched_bodies(python: Apply) -> None:
    """The doctor finds every patched body as it should be, and a server would start."""
    report = json.loads(python("-m", "sglang_spin", "--json").stdout)
    assert report["ok"]
    found = {row["target"] for row in report["ledger"] if row["status"] == "patched"}
    assert found == set(PATCHED)


def test_a_half_patched_package_is_refused(patched: Path, python: Apply) -> None:
    """One file of the wheel among patched ones: the launcher ends with one line that names it."""
    path = patched / "sglang/srt/mem_cache/allocator/paged.py"
    text = path.read_text()
    path.write_text((INSTALLED / "sglang/srt/mem_cache/allocator/paged.py").read_text())
    try:
        done = python("-m", "sglang_spin.launch", "--model=tiny-dsa", "--dry-run")
    finally:
        path.write_text(text)
    assert done.returncode == 1
    assert "PagedTokenToKVPoolAllocator.alloc is not patched and others are" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_another_version_is_refused(apply: Apply, tmp_path: Path) -> None:
    """SGLang 0.5.24 is not guessed at."""
    env = doctored_sglang(tmp_path / "site", "METADATA", "\nVersion: 0.5.23", "\nVersion: 0.5.24")
    _assert_refused(apply(str(tmp_path / "copy"), **env), "found 0.5.24", tmp_path)


def test_a_package_that_was_edited_is_refused(apply: Apply, tmp_path: Path) -> None:
    """A file that is not the wheel's would give a copy that nobody has tested."""
    file = "srt/plugins/__init__.py"
    env = doctored_sglang(tmp_path / "site", file, "_plugins_loaded = True", "_plugins_loaded = 1")
    _assert_refused(apply(str(tmp_path / "copy"), **env), "differs from the wheel", tmp_path)


def test_an_existing_destination_is_refused(apply: Apply, tmp_path: Path) -> None:
    """Nothing is written over."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "note").write_text("mine")
    done = apply(str(tmp_path / "copy"))
    assert done.returncode == 1
    assert "not an empty folder" in done.stderr
    assert [p.name for p in (tmp_path / "copy").iterdir()] == ["note"]


def test_the_installed_package_is_no_destination(apply: Apply) -> None:
    """A folder inside the package is refused before anything is copied."""
    done = apply(str(INSTALLED / "sglang" / "copy"))
    assert done.returncode == 1
    assert "inside the installed package" in done.stderr
    assert not (INSTALLED / "sglang" / "copy").exists()


def _assert_refused(done: Applied, said: str, folder: Path) -> None:
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / "copy").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Why:", "Because:", "the header must have"),
        ("@@ -487,8", "@@ -487,9", "other lengths than it says"),
    ],
)
def test_a_malformed_patch_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A header that is missing and a hunk that lies about its length are named."""
    text = (ROOT / f"patches/sglang-{VERSION}/08-rope-neox.patch").read_text()
    assert old in text
    path = tmp_path / "08-rope-neox.patch"
    path.write_text(text.replace(old, new))
    with pytest.raises(PatchError, match=said):
        read(path)


def test_a_hunk_applies_in_its_place_or_not_at_all() -> None:
    """The right lines one line further down do not do: no fuzz, no offsets."""
    [patch] = [p for p in patches() if p.name == "08-rope-neox"]
    [file] = patch.files
    text = (INSTALLED / file.path).read_text()
    assert file.apply(text) != text
    with pytest.raises(PatchError, match="not the text the patch expects"):
        file.apply("\n" + text)
