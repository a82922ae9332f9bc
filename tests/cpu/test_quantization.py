"""Quantisation, rotation and key storage: the small kernels around the index scores."""

from __future__ import annotations

import pytest
import torch

from sglang_spin.cpu.kernels.hadamard import hadamard
from sglang_spin.cpu.kernels.index_keys import read_index_keys, write_index_keys
from sglang_spin.cpu.kernels.quantization import quantize_blocks
from sglang_spin.cpu.kernels.rope import rotate_
from tests.cpu.oracles import PAGE, fp8, generator, index_pages


def _values() -> torch.Tensor:
    spread = torch.exp(3 * torch.randn((40, 3, 1), generator=generator(2)))
    x = torch.randn((40, 3, 128), generator=generator(1)) * spread
    x[0, 0] = 0.0
    x[0, 1] *= 1e-9
    x[0, 2] = 448.0
    return x


@pytest.mark.parametrize("power_of_two", [False, True], ids=["exact", "ue8m0"])
def test_bytes_equal_torch_rounding(power_of_two: bool) -> None:
    """Scales follow max(amax, 1e-4) / 448, rounded up to 2**n for ue8m0; bytes are torch's cast."""
    x = _values()
    values, scales = quantize_blocks(x, 128, power_of_two)
    want = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1 / 448)
    if power_of_two:
        want = torch.exp2(torch.ceil(torch.log2(want.double()))).float()
    assert torch.equal(scales, want)
    cast = (x / want).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(values.view(torch.uint8), cast.view(torch.uint8))


def test_every_fp8_value_and_midpoint_rounds_like_torch() -> None:
    """All e4m3 values, the midpoints between neighbours and their fp32 neighbours round alike."""
    codes = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (codes[1:] + codes[:-1]) / 2
    points = torch.cat([codes, middle, torch.nextafter(middle, codes[1:])])
    points = torch.cat([points, torch.nextafter(middle, codes[:-1]), torch.tensor([0.0, 0.0])])
    x = torch.cat([points, -points])
    x = torch.cat([x, x.new_zeros(-len(x) % 127)]).view(-1, 127)
    x = torch.cat([x, torch.full((len(x), 1), 448.0)], 1)  # makes every scale exactly 1
    values, scales = quantize_blocks(x, 128, power_of_two=True)
    assert (scales == 1).all()
    assert torch.equal(values.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_hadamard_equals_the_matrix() -> None:
    """Rows times the Sylvester matrix, within fp32 rounding; each row alone gives the same bits."""
    x = torch.randn((70, 2, 128), generator=generator(3))
    matrix = torch.ones((1, 1), dtype=torch.float64)
    while len(matrix) < 128:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    out = hadamard(x, 128**-0.5)
    # seven levels of additions of values up to 4 * 11
    assert (out.double() - x.double() @ matrix * 128**-0.5).abs().max() < 5e-6
    assert torch.equal(hadamard(x[33:34, 1:], 128**-0.5)[0, 0], out[33, 1])


def test_hadamard_names_a_wrong_size() -> None:
    """Another last dimension is refused with the size in the message."""
    with pytest.raises(ValueError, match="must be 128, got 64"):
        hadamard(torch.zeros(1, 64))


@pytest.mark.parametrize("neox", [True, False], ids=["halves", "pairs"])
@pytest.mark.parametrize("flat", [True, False], ids=["key", "heads"])
def test_rotation_turns_each_pair_by_its_angle(neox: bool, flat: bool) -> None:
    """Views are rotated in place as complex numbers; dimensions beyond the table stay."""
    base = torch.randn((9, 3, 96), generator=generator(4))
    angles = torch.rand((50, 32), generator=generator(5)).double() * 6
    table = torch.cat([angles.cos(), angles.sin()], 1).float()
    at = torch.tensor([0, 1, 49, 7, 7, 3, 2, 11, 30])
    x = (base[:, 0] if flat else base)[..., :80]
    before = x.clone().double()
    assert rotate_(x, table, at, neox) is x
    pairs = before[..., :64]
    pairs = torch.stack(pairs.chunk(2, -1), -1) if neox else pairs.unflatten(-1, (32, 2))
    turn = torch.polar(torch.ones_like(angles), angles)[at]
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * (turn if flat else turn[:, None])
    )
    want = torch.cat(turned.unbind(-1), -1) if neox else turned.flatten(-2)
    assert (x[..., :64].double() - want).abs().max() < 1e-6
    assert torch.equal(x[..., 64:].double(), before[..., 64:])


def test_keys_written_are_the_keys_read() -> None:
    """Tokens scattered over pages come back in order, request after request, others untouched."""
    pages = index_pages(12, seed=8)
    before = pages.clone()
    lengths = torch.tensor([65, 1, 128])
    table = torch.tensor([[5, 2], [9, 0], [11, 7]])
    slots = torch.cat(
        [
            torch.tensor([int(row[c // PAGE]) * PAGE + c % PAGE for c in range(length)])
            for row, length in zip(table, lengths.tolist(), strict=True)
        ]
    )
    keys, scales = fp8((len(slots), 128), 6), torch.rand(len(slots), generator=generator(7))
    write_index_keys(pages, slots, keys, scales, PAGE)
    got_keys, got_scales = read_index_keys(pages, table, lengths, PAGE, 128)
    assert torch.equal(got_keys, keys.view(torch.uint8))
    assert torch.equal(got_scales.contiguous().view(torch.float32).view(-1), scales)
    untouched = [p for p in range(12) if p not in (5, 2, 9, 11, 7)]
    assert torch.equal(pages[untouched], before[untouched])
    assert torch.equal(pages[2, 128 : PAGE * 128], before[2, 128 : PAGE * 128])
