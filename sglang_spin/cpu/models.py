"""Tiny models for the CPU engine: generated once into a cache folder, then loaded as usual."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from sglang_spin.cpu import tiny_dsa, tiny_dsa_mtp, tiny_glm, tiny_v4

_FINGERPRINTS: dict[str, Callable[[], str]] = {
    "tiny-dsa": tiny_dsa.fingerprint,
    "tiny-dsa-mtp": tiny_dsa_mtp.fingerprint,
    "tiny-glm": tiny_glm.fingerprint,
    "tiny-v4": tiny_v4.fingerprint,
}
_WRITERS: dict[str, Callable[[Path], None]] = {
    "tiny-dsa": tiny_dsa.write,
    "tiny-dsa-mtp": tiny_dsa_mtp.write,
    "tiny-glm": tiny_glm.write,
    "tiny-v4": tiny_v4.write,
}

MODELS: tuple[str, ...] = tuple(_WRITERS)


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/sglang-spin`, or `~/.cache/sglang-spin` where that is not set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglang-spin"


def ensure_model(name: str, cache_dir: Path) -> Path:
    """Return the folder of model `name` under `cache_dir`; generate it, in seconds, if missing.

    The folder name carries a hash of the generator, so a changed generator never meets old weights.
    Safe under concurrent callers: each writes a folder of its own and one rename wins.
    Raises ValueError for an unknown name.
    """
    if name not in _WRITERS:
        raise ValueError(f"no tiny model is called {name!r}; there are: {', '.join(MODELS)}")
    target = cache_dir / f"{name}-{_FINGERPRINTS[name]()}"
    if target.is_dir():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_dir))
    try:
        _WRITERS[name](scratch)
        write_tokenizer(scratch)
        # mkdtemp makes the folder private to its owner; a cache may be shared
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            # another process finished first: its folder has the same contents
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def write_tokenizer(folder: Path) -> None:
    """Write a word-level tokenizer beside `folder`/config.json: token i is the word `t<i>`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    config = json.loads((folder / "config.json").read_text())
    specials = {"<s>": 0, "</s>": 1, "<unk>": 2}
    words = {f"t{i}": i for i in range(len(specials), config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(specials | words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": config["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
