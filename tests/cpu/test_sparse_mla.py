"""Sparse latent attention against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_spin.cpu.kernels.sparse_mla import sparse_mla
from tests.cpu.oracles import generator

LATENT, ROPE, SLOTS, TOPK = 512, 64, 400, 128
SCALE = 0.07


def _inputs(tokens: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    gen = generator(heads)
    q = torch.randn((tokens, heads, LATENT + ROPE), generator=gen)
    cache = torch.randn((SLOTS, LATENT + ROPE), generator=gen).bfloat16()
    slots = torch.stack([torch.randperm(SLOTS, generator=gen)[:TOPK] for _ in range(tokens)])
    return q, cache, slots.int()


def _run(q: Tensor, cache: Tensor, slots: Tensor, counts: list[int]) -> Tensor:
    return sparse_mla(
        q[..., :LATENT],
        q[..., LATENT:],
        cache[:, :LATENT],
        cache[:, LATENT:],
        slots,
        torch.tensor(counts),
        SCALE,
    )


def _oracle(q: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
    rows = cache[slots.long()].double()
    return torch.softmax(q.double() @ rows.T * SCALE, -1) @ rows[:, :LATENT]


@pytest.mark.parametrize("heads", [1, 4, 5, 8])
def test_output_equals_the_formula(heads: int) -> None:
    """Rows of 1, 3, 64 and all slots give softmax attention within a few fp32 roundings."""
    counts = [1, 3, 64, TOPK]
    q, cache, slots = _inputs(len(counts), heads)
    out = _run(q, cache, slots, counts)
    for t, count in enumerate(counts):
        want = _oracle(q[t], cache, slots[t, :count])
        # measured: 4e-7 of values up to 3; logits of size 20 lose 2e-6 in fp32
        assert (out[t].double() - want).abs().max() < 5e-6


def test_slots_past_the_count_and_negative_slots_are_ignored() -> None:
    """Poison behind the count is not read and -1 inside it takes no weight."""
    q, cache, slots = _inputs(2, 4)
    slots[:, 50:] = 10**8
    slots[1, 10:20] = -1
    out = _run(q, cache, slots, [50, 50])
    kept = torch.cat([slots[1, :10], slots[1, 20:50]])
    assert (out[0].double() - _oracle(q[0], cache, slots[0, :50])).abs().max() < 5e-6
    assert (out[1].double() - _oracle(q[1], cache, kept)).abs().max() < 5e-6


def test_a_token_without_slots_gets_zeros() -> None:
    """Padding rows (count 0, or only -1) produce zeros and no NaN."""
    q, cache, slots = _inputs(2, 4)
    slots[1] = -1
    assert not _run(q, cache, slots, [0, TOPK]).any()


def test_other_tokens_do_not_change_the_bits() -> None:
    """A token alone and in a batch, with more room for slots, has the same output bits."""
    q, cache, slots = _inputs(9, 4)
    batch = _run(q, cache, slots, [100] * 9)
    wide = torch.cat([slots[3:4], torch.full((1, 300), -1, dtype=torch.int32)], 1)
    assert torch.equal(_run(q[3:4], cache, wide, [100])[0], batch[3])


def test_cache_rows_may_be_strided() -> None:
    """The latent and the rotary part may be views of one buffer, as in SGLang's pool, or not."""
    q, cache, slots = _inputs(3, 4)
    apart = sparse_mla(
        q[..., :LATENT],
        q[..., LATENT:],
        cache[:, :LATENT].contiguous(),
        cache[:, LATENT:].contiguous(),
        slots,
        torch.tensor([TOPK] * 3),
        SCALE,
    )
    assert torch.equal(apart, _run(q, cache, slots, [TOPK] * 3))
