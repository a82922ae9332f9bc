"""Options that would make SPIN wrong or inactive are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_spin.engine.refusals import REFUSALS, first_refusal

SERVED = {
    "attention_backend": "dsa",
    "page_size": 64,
    "speculative_algorithm": None,
    "dsa_topk_backend": "sgl-kernel",
    "enable_hisparse": False,
    "enable_two_batch_overlap": False,
    "enable_mixed_chunk": False,
    "enable_unified_memory": False,
    "enable_kv_cache_sharding": False,
    "dcp_size": 1,
    "pp_size": 1,
    "enable_dp_attention": False,
    "disaggregation_mode": "null",
    "enable_pdmux": False,
    "use_ray": False,
    "device": "cpu",
}


def test_plain_serving_is_not_refused() -> None:
    """The options of an ordinary DSA server pass."""
    assert first_refusal(SimpleNamespace(**SERVED)) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_backend": "fa3"}, "--attention-backend"),
        ({"page_size": 256}, "--page-size"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm"),
        ({"dsa_topk_backend": "flashinfer"}, "--dsa-topk-backend"),
        ({"enable_hisparse": True}, "--enable-hisparse"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"enable_mixed_chunk": True}, "--enable-mixed-chunk"),
        ({"enable_unified_memory": True}, "--enable-unified-memory"),
        ({"enable_kv_cache_sharding": True}, "--enable-kv-cache-sharding"),
        ({"dcp_size": 2}, "--dcp-size"),
        ({"pp_size": 2}, "--pp-size"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
        ({"use_ray": True}, "--use-ray"),
        ({"device": "xpu"}, "this device"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_option_is_refused_in_one_line(change: dict[str, Any], named: str) -> None:
    """The line names the option, says why, and how to go on."""
    line = first_refusal(SimpleNamespace(**{**SERVED, **change}))
    assert line is not None
    assert named in line
    assert "--no-spin" in line
    assert "\n" not in line


V4 = {
    "attention_backend": "dsv4",
    "page_size": 256,
    "dsv4_attn_backend": "flashmla",
    "enable_return_indexer_topk": False,
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, None),
        ({"page_size": 64}, "256 (dsv4)"),
        ({"dsv4_attn_backend": "trtllm"}, "--dsv4-attn-backend"),
        ({"dsv4_attn_backend": "flashmla_mega"}, "--dsv4-attn-backend"),
        ({"enable_return_indexer_topk": True}, "--enable-return-indexer-topk"),
    ],
)
def test_v4_is_served_with_its_own_limits(change: dict[str, Any], named: str | None) -> None:
    """A plain V4 server passes; what was not tested with its indexer is named."""
    line = first_refusal(SimpleNamespace(**{**SERVED, **V4, **change}))
    assert line is None if named is None else line is not None and named in line


@pytest.mark.parametrize("variable", ["SGLANG_OPT_USE_TOPK_V2", "SGLANG_DSA_FUSE_TOPK"])
def test_switches_in_the_environment_count(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A top-k that does not map through the page table is refused also when a variable asks."""
    monkeypatch.setenv(variable, "false")
    line = first_refusal(SimpleNamespace(**SERVED))
    assert line is not None
    assert variable in line


def test_options_are_read_by_names_that_exist() -> None:
    """Every option looked at is a field of SGLang: a renamed one must not pass as off."""
    from sglang.srt.server_args import ServerArgs

    names = set(ServerArgs.__struct_fields__)
    assert set(SERVED) <= names
    assert len(REFUSALS) == len({r.option for r in REFUSALS})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm"),
        ({"dsa_paged_mqa_logits_backend": "cutedsl"}, "--dsa-paged-mqa-logits-backend"),
    ],
)
def test_the_fused_scorer_is_refused_where_it_would_not_be_asked(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
) -> None:
    """What scores elsewhere, or in other rows, is named together with the scorer."""
    options = {**SERVED, "dsa_paged_mqa_logits_backend": "auto"}
    monkeypatch.setenv("SPIN_SCORER", "fused")
    assert first_refusal(SimpleNamespace(**options)) is None
    line = first_refusal(SimpleNamespace(**{**options, **change}))
    assert line is not None
    assert named in line
