"""tiny-v4's folder: every kind of layer, reproducible, and one stream for both tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_spin.cpu import launch_defaults, tiny_dsa, tiny_stream, tiny_v4
from sglang_spin.cpu.models import ensure_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model("tiny-v4", tmp_path_factory.mktemp("cache"))


def test_every_kind_of_layer_is_there(folder: Path) -> None:
    """Sliding window, C4 and C128, hash and learned routing, streams, and the real top-k."""
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV4ForCausalLM"]
    assert set(config["compress_ratios"]) == {0, 4, 128}
    assert config["compress_ratios"].count(4) >= 2
    assert 0 < config["num_hash_layers"] < config["num_hidden_layers"]
    assert config["index_topk"] == 512
    assert config["hc_mult"] == 4
    assert config["max_position_embeddings"] >= 32768


def test_same_seed_same_bytes(folder: Path, tmp_path: Path) -> None:
    """Two generations agree byte for byte, so results can be compared between machines and days."""
    tiny_v4.write(tmp_path)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("config", [tiny_dsa.CONFIG, tiny_v4.CONFIG], ids=["dsa", "v4"])
def test_the_stream_is_the_one_the_weights_assume(config: dict) -> None:
    """Both configurations have the sizes that the shared generators draw."""
    assert config["hidden_size"] == tiny_stream.HIDDEN
    assert config["vocab_size"] == tiny_stream.VOCAB
    assert config["n_routed_experts"] == tiny_stream.EXPERTS


def test_options_follow_the_family(folder: Path, tmp_path: Path) -> None:
    """A V4 folder gets V4's backend, page and cache; another path gets those of DSA."""
    v4, other = launch_defaults.server_args(str(folder)), launch_defaults.server_args("no/folder")
    assert {"--attention-backend=dsv4", "--page-size=256"} <= set(v4)
    assert {"--attention-backend=dsa", "--page-size=64"} <= set(other)
    names = [[word.partition("=")[0] for word in words] for words in (v4, other)]
    assert all(len(each) == len(set(each)) for each in names)
