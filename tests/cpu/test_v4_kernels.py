"""DeepSeek-V4's reference kernels against plain definitions in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_spin.cpu.kernels.v4.compress import merge_windows
from sglang_spin.cpu.kernels.v4.compress_plan import Rings, decode_plan, prefill_plans
from sglang_spin.cpu.kernels.v4.hyper import mixing_weights
from sglang_spin.cpu.kernels.v4.latent_rows import DIM, ROW_BYTES, read_rows, write_rows
from sglang_spin.cpu.kernels.v4.norm_rope import normed_rotated, rotate_tail_
from sglang_spin.cpu.kernels.v4.sparse_mqa import Selected, sparse_mqa

PAGE = 128
DIM_SMALL = 32


@pytest.fixture
def gen() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _pages(count: int, padding: int = 64) -> Tensor:
    """Pages with spare bytes at the end, as the engine pads them."""
    return torch.full((count, PAGE * ROW_BYTES + padding), 0xA5, dtype=torch.uint8)


def _as_stored(rows: Tensor) -> Tensor:
    """What a row of the cache holds, by the format's definition."""
    groups = rows[:, :448].unflatten(1, (7, 64))
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(largest.double() / 448))).float()
    values = (groups / scale).to(torch.float8_e4m3fn).float() * scale
    return torch.cat([values.flatten(1), rows[:, 448:].bfloat16().float()], 1)


def test_rows_are_stored_in_the_format_and_read_exactly(gen: torch.Generator) -> None:
    """fp8 groups with power-of-two scales and a bf16 tail; reading adds no error; padding stays."""
    pages = _pages(3)
    rows = torch.randn(50, DIM, generator=gen) * torch.logspace(-4, 3, 50)[:, None]
    slots = torch.randperm(3 * PAGE, generator=gen)[:50]
    write_rows(pages, slots, rows, PAGE)
    got = read_rows(pages, slots.int(), PAGE)
    assert torch.equal(got.float(), _as_stored(rows))
    assert (pages[:, PAGE * ROW_BYTES :] == 0xA5).all()


def _attention(q: Tensor, keys: Tensor, scale: float, sinks: Tensor) -> Tensor:
    """One token: q [heads, 512], keys [n, 512], in fp64."""
    logits = q.double() @ keys.double().T * scale
    shares = torch.cat([logits, sinks.double()[:, None]], 1).softmax(1)[:, :-1]
    return shares @ keys.double()


def test_attention_is_softmax_over_both_caches_and_the_sink(gen: torch.Generator) -> None:
    """Each token attends to its own slots, skips -1, and reads nothing past its counts."""
    rows = torch.randn(2 * PAGE, DIM, generator=gen)
    pages = _pages(2)
    write_rows(pages, torch.arange(2 * PAGE), rows, PAGE)
    stored, heads = _as_stored(rows), 6
    q = torch.randn(5, heads, DIM, generator=gen)
    sinks = torch.randn(heads, generator=gen)
    slots = [torch.randint(0, 2 * PAGE, (5, 64), generator=gen).int() for _ in range(2)]
    slots[1][:, 7] = -1
    counts = torch.tensor([1, 64, 30, 8, 64]).int(), torch.tensor([64, 1, 9, 64, 8]).int()
    caches = [Selected(pages, PAGE, s, c) for s, c in zip(slots, counts, strict=True)]
    out = sparse_mqa(q, caches, DIM**-0.5, sinks)
    for t in range(5):
        chosen = torch.cat([s[t, : c[t]] for s, c in zip(slots, counts, strict=True)])
        expected = _attention(q[t], stored[chosen[chosen >= 0].long()], DIM**-0.5, sinks)
        assert (out[t] - expected).abs().max() < 3e-6
    alone = [Selected(c.pages, PAGE, c.slots[2:3], c.counts[2:3]) for c in caches]
    assert torch.equal(sparse_mqa(q[2:3], alone, DIM**-0.5, sinks)[0], out[2])


def test_a_token_without_slots_gets_zeros(gen: torch.Generator) -> None:
    """A padded row has nothing to attend to; the sink takes all weight."""
    slots = torch.full((1, 64), -1, dtype=torch.int32)
    cache = Selected(_pages(1), PAGE, slots, torch.tensor([64]).int())
    assert not sparse_mqa(torch.randn(1, 4, DIM, generator=gen), [cache], 0.1, torch.ones(4)).any()


def test_rotation_turns_the_last_dimensions_and_back(gen: torch.Generator) -> None:
    """Interleaved pairs of the last 64 dimensions, by complex multiplication; inverse undoes it."""
    angles = torch.rand(20, 32, generator=gen) * 6
    freqs, positions = torch.polar(torch.ones_like(angles), angles), torch.tensor([3, 19, 0])
    x = torch.randn(3, 4, 128, generator=gen)
    turned = rotate_tail_(x.clone(), freqs, positions)
    pairs = torch.view_as_complex(x[..., 64:].unflatten(-1, (32, 2)).contiguous())
    expected = torch.view_as_real(pairs * freqs[positions][:, None]).flatten(-2)
    assert torch.allclose(turned[..., 64:], expected, atol=1e-6)
    assert torch.equal(turned[..., :64], x[..., :64])
    assert torch.allclose(rotate_tail_(turned, freqs, positions, inverse=True), x, atol=1e-6)
    norm = normed_rotated(x, torch.full((128,), 2.0), 1e-6, freqs, positions)
    assert torch.allclose(norm.square().mean(-1), torch.tensor(4.0), atol=1e-4)


def test_mixing_weights_are_doubly_stochastic(gen: torch.Generator) -> None:
    """Sinkhorn leaves columns that sum to one and rows nearly so; the others are sigmoids."""
    mixes = torch.randn(7, 24, generator=gen)
    pre, post, comb = mixing_weights(mixes, torch.ones(3), torch.zeros(24), 4, 20, 1e-6)
    assert torch.allclose(comb.sum(1), torch.ones(7, 4), atol=1e-5)
    assert torch.allclose(comb.sum(2), torch.ones(7, 4), atol=1e-3)
    assert torch.allclose(pre, torch.sigmoid(mixes[:, :4]) + 1e-6)
    assert torch.allclose(post, 2 * torch.sigmoid(mixes[:, 4:8]))


class _Compressor:
    """A request's compressor over a ring, fed in chunks; `entries` holds what it emitted."""

    def __init__(self, ratio: int, gen: torch.Generator) -> None:
        self.ratio, series = ratio, 2 if ratio == 4 else 1
        self.window = ratio * series
        self.bias = torch.randn(self.window, DIM_SMALL, generator=gen)
        locations = torch.randperm(512, generator=gen).view(1, -1).repeat(3, 1)
        # pages of sliding-window slots keep the order within a page
        pages = torch.randperm(4, generator=gen)[torch.arange(512) // 128]
        to_window = torch.empty(512, dtype=torch.long)
        to_window[locations[0]] = pages * 128 + torch.arange(512) % 128
        size = 8 if ratio == 4 else 128
        self.rings = Rings(ratio, size, locations, to_window, 128)
        slots = 4 * size if ratio == 4 else 3 * size
        self.ring = torch.full((slots, 2 * series * DIM_SMALL), float("nan"))
        self.entries: dict[int, Tensor] = {}

    def prefill(self, tokens: Tensor, length: int) -> None:
        extended = torch.tensor([len(tokens)])
        merges, writes = prefill_plans(
            self.rings, torch.tensor([2]), torch.tensor([length]), extended
        )
        out = merge_windows(self.ring, tokens, self.bias, merges, self.ratio)
        self.ring[writes[:, 1].long()] = tokens[writes[:, 0].long()]
        for merge, entry in zip(merges.tolist(), out, strict=True):
            self.entries[merge[0] // self.ratio - 1] = entry

    def decode(self, token: Tensor, length: int) -> None:
        plan = decode_plan(self.rings, torch.tensor([2]), torch.tensor([length]))
        self.ring[plan[:, 1].long()] = token
        if length % self.ratio == 0:
            plan[:, 1] = self.window << 16
            out = merge_windows(self.ring, token, self.bias, plan, self.ratio)
            self.entries[length // self.ratio - 1] = out[0]


def _merged(tokens: Tensor, bias: Tensor, ratio: int) -> Tensor:
    """All entries of a whole sequence, by definition."""
    entries, dim = len(tokens) // ratio, bias.shape[1]
    value, gate = tokens[: entries * ratio].view(entries, ratio, -1).double().chunk(2, -1)
    if ratio == 4:
        none = value.new_zeros(1, ratio, dim), value.new_full((1, ratio, dim), float("-inf"))
        value = torch.cat([torch.cat([none[0], value[:-1, :, :dim]]), value[:, :, dim:]], 1)
        gate = torch.cat([torch.cat([none[1], gate[:-1, :, :dim]]), gate[:, :, dim:]], 1)
    return ((gate + bias.double()).softmax(1) * value).sum(1)


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("chunks", [[300], [1, 2, 3, 130, 128, 36], [127, 1, 5, 167]])
def test_entries_do_not_depend_on_the_chunks(
    ratio: int, chunks: list[int], gen: torch.Generator
) -> None:
    """Prefill chunks of any size and then decode give the entries of the whole sequence."""
    compressor = _Compressor(ratio, gen)
    tokens = torch.randn(420, compressor.ring.shape[1], generator=gen)
    done = 0
    for size in chunks:
        compressor.prefill(tokens[done : done + size].contiguous(), done + size)
        done += size
    for length in range(done + 1, len(tokens) + 1):
        compressor.decode(tokens[length - 1 : length].contiguous(), length)
    expected = _merged(tokens, compressor.bias, ratio)
    assert sorted(compressor.entries) == list(range(len(expected)))
    got = torch.stack([compressor.entries[i] for i in range(len(expected))])
    assert (got - expected).abs().max() < 2e-6
