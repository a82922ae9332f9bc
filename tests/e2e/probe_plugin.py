"""Making a test module a plugin of the SGLang servers that a test starts."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(folder: Path, module: str) -> dict[str, str]:
    """Make `folder` an installed distribution whose plugin is `module`.register.

    Returns the environment in which a server finds it.
    """
    name = module.rpartition(".")[2].strip("_")
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {module}:register\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
