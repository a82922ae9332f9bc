"""A tiny model's folder: its name follows its generator, its files are those that engines load."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def source_hash(*names: str) -> str:
    """Hash of generator modules of this package: any change of them gives another folder."""
    sources = (Path(__file__).with_name(name).read_bytes() for name in names)
    return hashlib.sha256(b"".join(sources)).hexdigest()[:12]


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors into `folder`."""
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
