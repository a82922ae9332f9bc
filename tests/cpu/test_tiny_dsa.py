"""The tiny model's folder: complete, reproducible, safe to create concurrently."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_spin.cpu import models, tiny_dsa
from sglang_spin.cpu.models import MODELS, default_cache_dir, ensure_model

FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model("tiny-dsa", tmp_path_factory.mktemp("cache"))


def test_shape_is_what_the_engine_and_the_experiments_need(folder: Path) -> None:
    """The configuration on disk keeps its promises: DSA sizes, depth, experts, context."""
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV32ForCausalLM"]
    assert config["num_hidden_layers"] >= 4
    assert config["num_hidden_layers"] - config["first_k_dense_replace"] >= 2
    assert config["index_head_dim"] == 128
    assert config["index_n_heads"] >= 16
    assert config["index_topk"] == 128
    assert config["max_position_embeddings"] >= 65536


def test_folder_is_complete_and_nothing_is_left_beside_it(folder: Path) -> None:
    """A finished model holds its four files, and no scratch folder survives."""
    assert {path.name for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_same_seed_same_bytes(folder: Path, tmp_path: Path) -> None:
    """Two generations agree byte for byte, so results can be compared between machines and days."""
    tiny_dsa.write(tmp_path)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_second_call_generates_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that exists is returned as it is."""
    monkeypatch.setitem(models._WRITERS, "tiny-dsa", lambda _folder: pytest.fail("generated again"))
    assert ensure_model("tiny-dsa", folder.parent) == folder


def test_concurrent_callers_get_one_complete_model(tmp_path: Path) -> None:
    """Callers that race for the same model all get the same folder, and it is complete."""
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ensure_model, "tiny-dsa", tmp_path) for _ in range(4)]
        folders = {future.result() for future in futures}
    assert len(folders) == 1
    assert {path.name for path in folders.pop().iterdir()} == FILES
    assert len(list(tmp_path.iterdir())) == 1


def test_failed_generation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation that breaks off leaves no folder that a later call could take for a model."""

    def break_off(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setitem(models._WRITERS, "tiny-dsa", break_off)
    with pytest.raises(OSError, match="disk full"):
        ensure_model("tiny-dsa", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_changed_generator_makes_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old weights are never returned for a new generator."""
    monkeypatch.setitem(models._FINGERPRINTS, "tiny-dsa", lambda: "0" * 12)
    assert ensure_model("tiny-dsa", folder.parent) != folder


def test_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    """A misspelt model name is answered with the names there are."""
    with pytest.raises(ValueError, match="'tiny-dsb'") as caught:
        ensure_model("tiny-dsb", tmp_path)
    assert all(name in str(caught.value) for name in MODELS)


def test_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME moves the cache; without it the cache is under the home folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "sglang-spin"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "sglang-spin"


def test_tokenizer_maps_words_to_ids_and_back(folder: Path) -> None:
    """Token i is the word `t<i>`, so that text endpoints carry token ids without loss."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [3, 77, 1023, 500]
    text = " ".join(f"t{i}" for i in ids)
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids) == text


def test_importing_the_models_module_imports_no_torch() -> None:
    """The launcher lists model names without paying for torch."""
    code = "import sys, sglang_spin.cpu.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
