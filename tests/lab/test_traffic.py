"""Bytes and FLOPs of a step against arithmetic done by hand from the models' published shapes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.core.budget import budget_floor, budget_table
from sglang_spin.lab.cost import traffic
from sglang_spin.lab.cost.gpus import GPUS
from sglang_spin.lab.cost.models import GLM_5, MODELS, V4_FLASH, V4_PRO, V32, ModelShape
from sglang_spin.lab.cost.traffic import IndexFormat, Load

ALL = [pytest.param(model, id=name) for name, model in MODELS.items()]


def _load(context: int = 507_000, batch: int = 96, index_format: IndexFormat = "fp8") -> Load:
    return Load(context, batch, tp=8, index_format=index_format)


@pytest.mark.parametrize(
    ("model", "index_format", "megabytes"),
    [(V4_FLASH, "fp8", 351), (V4_FLASH, "fp4", 181), (V4_PRO, "fp8", 502), (V32, "fp8", 4082)],
)
def test_index_bytes_of_one_request(
    model: ModelShape, index_format: IndexFormat, megabytes: int
) -> None:
    """A 507K request reads layers x entries x 132 or 68 bytes of index keys a step."""
    load = _load(batch=1, index_format=index_format)
    work = traffic.scoring(model, load, traffic.blocks(model, load.context))
    assert round(work.read / 1e6) == megabytes


def test_scoring_of_the_published_batch() -> None:
    """96 requests of 126,750 entries in 21 layers: 132 B read, 4 B written, 2 x 64 x 128 FLOPs."""
    work = traffic.scoring(V4_FLASH, _load(), 1981)
    scored = 96 * 126_750 * 21
    assert (work.read, work.written, work.flops) == (scored * 132, scored * 4, scored * 16_384)


def test_topk_reads_every_logit_once_and_writes_its_choice() -> None:
    """Top-k reads 4 B an entry and writes 4 B for each of 512 choices a row and layer."""
    work = traffic.topk(V4_FLASH, _load(), 1981)
    assert (work.read, work.written) == (96 * 126_750 * 21 * 4, 96 * 21 * 512 * 4)


def test_skipped_blocks_are_whole_and_the_newest_stays() -> None:
    """Skipping 792 of 1,981 blocks removes 792 x 64 entries, however short the newest block is."""
    assert traffic.blocks(V4_FLASH, 507_000) == 1981
    assert traffic.kept_blocks(V4_FLASH, 507_000, 0.4) == 1981 - 792
    assert traffic.kept_entries(V4_FLASH, 507_000, 1189) == 126_750 - 792 * 64


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(list(MODELS.values())),
    st.integers(1, 300_000),
    st.decimals(0, 1, places=3).map(float),
)
def test_kept_blocks_follow_the_plugins_budget(
    model: ModelShape, context: int, sparsity: float
) -> None:
    """The model keeps exactly as many blocks as the plugin's own budget table says."""
    count = traffic.blocks(model, context)
    table = budget_table(count, sparsity, budget_floor(model.index_topk))
    assert traffic.kept_blocks(model, context, sparsity) == int(table[count])


def test_attended_entries_of_flash() -> None:
    """512 in 21 indexer layers, all 3,960 in 20 pooled layers, a window of 128 in all 43."""
    assert traffic.attended(V4_FLASH, 507_000) == 512 * 21 + 3_960 * 20 + 128 * 43


def test_attention_of_a_short_row_reads_what_there_is() -> None:
    """With fewer entries than index_topk, attention reads all of them and no more."""
    assert traffic.attended(V32, 100) == 100 * 61
    assert traffic.attended(V4_FLASH, 100) == 25 * 21 + 100 * 43


@pytest.mark.parametrize(("context", "share"), [(32_768, 0.65), (131_072, 0.81)])
def test_indexer_share_of_kv_traffic_as_reported(context: int, share: float) -> None:
    """About 65 % of V4-Flash's decode KV traffic is index keys at 32K and 81 % at 128K."""
    load = _load(context, batch=1)
    index = traffic.scoring(V4_FLASH, load, traffic.blocks(V4_FLASH, context)).read
    kv = traffic.core_attention(V4_FLASH, load).read
    assert index / (index + kv) == pytest.approx(share, abs=0.01)


def test_experts_touched() -> None:
    """One token touches k of E experts; 96 tokens of 6 in 256 touch 1 - (250/256)^96."""
    assert traffic.experts_touched(V4_FLASH, 1) == pytest.approx(6 / 256)
    assert traffic.experts_touched(V4_FLASH, 96) == pytest.approx(0.897, abs=0.0005)


def test_weights_of_flash() -> None:
    """277.0e9 expert parameters at 17/32 B, 89.7 % touched, and 7.0e9 others at 1 B, over 8."""
    assert V4_FLASH.expert_parameters == 43 * 256 * 3 * 4096 * 2048
    work = traffic.weights(V4_FLASH, _load())
    touched = 1 - (250 / 256) ** 96
    experts = 277_025_390_592 * 17 / 32 * touched
    assert work.read == pytest.approx((experts + 284e9 - 277_025_390_592) / 8)
    assert work.flops == 2 * 13e9 * 96 / 8


@pytest.mark.parametrize("model", ALL)
def test_model_tables_are_consistent(model: ModelShape) -> None:
    """Experts fit into all parameters, used experts into the active ones, and layers add up."""
    used = model.expert_parameters * model.experts_per_token / model.experts
    assert 0.9 * model.parameters < model.expert_parameters < model.parameters
    assert 0.4 * model.active < used < model.active
    assert model.indexer_layers + model.pooled_layers <= model.layers
    assert model.moe_layers <= model.layers


def test_glm_scores_with_half_the_heads() -> None:
    """GLM-5 has 32 index heads: half the FLOPs an entry of V3.2, the same bytes."""
    glm, v32 = (traffic.scoring(m, _load(64_000), 1000) for m in (GLM_5, V32))
    assert glm.flops / 78 * 61 * 2 == v32.flops
    assert glm.read / 78 * 61 == v32.read


def test_only_flash_fits_the_published_run() -> None:
    """96 requests of 507K fit eight B300 with V4-Flash and do not with V4-Pro."""
    assert traffic.memory(V4_FLASH, _load()) < GPUS["b300"].memory
    assert traffic.memory(V4_PRO, _load()) > GPUS["b300"].memory
