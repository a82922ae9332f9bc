"""`python -m benchmarks.gpu_check_values`: the Triton operators against torch, on one device.

Exit: 0 all equal, 1 a value differs, 2 the request is wrong. On a CPU it needs TRITON_INTERPRET=1
and --tiny.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from benchmarks.indexer_step.options import check_options
from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import BlockHistory, block_maxima
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Plan, Shape, SpinState
from sglang_spin.kernels.audit import audit
from sglang_spin.kernels.fold_select import fold_select
from sglang_spin.kernels.observe import observe
from sglang_spin.kernels.paged_logits import Placement, paged_logits
from sglang_spin.kernels.paged_logits.layout import DIM, FP4, FP8, GROUP, PageFormat
from sglang_spin.kernels.paged_logits.operands import HEADS

# an error is counted in units of the sum of |terms|; fp8 tensor cores add with about 13 bits
TOLERANCE = 2.0**-10
SHARES = ((0.0, False), (0.4, False), (0.4, True))  # sparsity, and whether layers divide a total
CLASSES = (0.6, 0.4, 0.1)
STATE = ("vertical", "distance", "recent")
ROWS = ("fresh", "generation", "step", "stashed")


class Mismatch(Exception):
    """A value that differs; the message says where."""


def equal(what: str, kernel: Tensor, reference: Tensor) -> None:
    """Same bits. Raises Mismatch."""
    if kernel.dtype == torch.float32:
        kernel, reference = kernel.view(torch.int32), reference.view(torch.int32)
    wrong = (kernel != reference).nonzero()
    if wrong.shape[0]:
        at = tuple(wrong[0].tolist())
        raise Mismatch(f"{what}: {wrong.shape[0]} values differ, the first at {at}")


def compare_states(kernel: SpinState, reference: SpinState) -> None:
    """All state of real rows; row 0 is nobody's. Raises Mismatch."""
    for name in ROWS:
        equal(name, getattr(kernel, name)[1:], getattr(reference, name)[1:])
    assert isinstance(kernel.history, BlockHistory)
    for name in STATE:
        pair = (getattr(state.history, name)[:, 1:] for state in (kernel, reference))
        equal(name, *pair)
    if kernel.counters.read() != reference.counters.read():
        raise Mismatch("counters differ")
    if kernel.audit is not None and reference.audit is not None:
        equal("tallies", kernel.audit.tallies, reference.audit.tallies)
        equal("histogram", kernel.audit.histogram, reference.audit.histogram)


def noted(plan: Plan, lengths: Tensor) -> Tensor:
    """The flags of the blocks of audited rows, 0 elsewhere; int32 [layers, rows, width]."""
    assert plan.flags is not None
    block = torch.arange(plan.blocks.shape[2], device=lengths.device)
    inside = plan.flags.audited[:, None] & (block * BLOCK < lengths[:, None])
    return (plan.flags.blocks * inside).int()


def rotated(sparsity: float, layers: int, step: int) -> Allotment:
    """A division of a total among layers, another one in every step."""
    count = min(len(CLASSES), layers)
    places = tuple((layer + step) % count for layer in range(layers))
    return Allotment(sparsity, CLASSES[:count], places)


def life(
    policy: str, sparsity: float, divided: bool, blocks: int, steps: int, device: torch.device
) -> None:
    """Rows of several lengths, one of them padding, decode; a row ends, its pages are inherited.

    divided: layers have classes, which change in every step.
    """
    rng = torch.Generator(device).manual_seed(1)
    layers, batch = 3, 5
    shape = Shape(layers, batch + 2, blocks, batch * blocks + 1, min(100, blocks * BLOCK // 4))
    config = SpinConfig(
        enabled=True,
        policy=policy,
        sparsity=sparsity,
        seed=7,
        audit_every=3,
        miss_slo=0.05 if divided else 0.0,
    )
    kernel, reference = (SpinState(config, shape, device) for _ in range(2))
    rows = torch.arange(1, batch + 1, device=device)
    table = (torch.randperm(batch * blocks, generator=rng, device=device).int() + 1).view(batch, -1)
    longest = blocks * BLOCK - steps
    lengths = torch.linspace(1, longest, batch, device=device).int()
    for state in (kernel, reference):
        state.open_rows(rows)
    batch_rows = rows.clone()
    batch_rows[2] = 0
    for step in range(steps):
        lengths += 1
        if divided:
            for state in (kernel, reference):
                state.budgets.set(rotated(sparsity, layers, step))
        plans = (
            fold_select(kernel, table, lengths, batch_rows, impl="triton"),
            fold_select(reference, table, lengths, batch_rows, impl="reference"),
        )
        for name in ("pages", "lengths", "blocks", "request_rows"):
            equal(f"{name} of step {step}", *(getattr(plan, name) for plan in plans))
        equal(f"flags of step {step}", *(noted(plan, lengths) for plan in plans))
        for layer in range(layers):
            logits = torch.randn(batch, blocks * BLOCK, generator=rng, device=device)
            if step == 1:
                logits[1, 5] = float("nan")
            observe(kernel, layer, logits, plans[0], impl="triton")
            observe(reference, layer, logits, plans[1], impl="reference")
            audit(kernel, layer, logits, plans[0], impl="triton")
            audit(reference, layer, logits, plans[1], impl="reference")
        compare_states(kernel, reference)
        if step == steps // 2:
            for state in (kernel, reference):
                state.close_rows(rows[-1:], table[-1].long())
                state.open_rows(rows[-1:])


def scores(
    page: PageFormat, heads: int, next_n: int, lengths: list[int], device: torch.device
) -> float:
    """Compare the scorer's logits and maxima. Returns the largest error, relative to the terms."""
    rng = torch.Generator(device).manual_seed(2)
    rows, tables = len(lengths), len(lengths) // next_n
    blocks = -(-max(lengths) // BLOCK) + 1
    q, q_scales, cache = _operands(page, rows, heads, tables * blocks + 1, rng)
    weights = torch.randn(rows, heads, generator=rng, device=device)
    table = torch.randperm(tables * blocks, generator=rng, device=device).int() + 1
    count = torch.tensor(lengths, dtype=torch.int32, device=device)

    def run(
        gates: Tensor,
        impl: str,
        maxima: Tensor | None = None,
        placement: Placement | None = None,
    ) -> Tensor:
        out = torch.full((rows, blocks * BLOCK), -1.0, device=device)
        return paged_logits(
            q,
            cache,
            gates,
            count,
            table.view(tables, blocks),
            q_scales=q_scales,
            out=out,
            maxima=maxima,
            placement=placement,
            impl=impl,  # type: ignore[arg-type]
        )

    best = torch.full((rows, blocks), -1.0, device=device)
    kernel, reference = run(weights, "triton", best), run(weights, "reference")
    terms = run(weights.abs(), "reference")
    inside = torch.arange(blocks * BLOCK, device=device) < count[:, None]
    equal("columns past the length", kernel[~inside], reference[~inside])
    error = ((kernel - reference).abs() / terms.abs().clamp(min=1e-20))[inside].max().item()
    if not error <= TOLERANCE:
        raise Mismatch(f"logits: error {error:.2e} of the terms, allowed {TOLERANCE:.2e}")
    used = torch.arange(blocks, device=device) * BLOCK < count[:, None]
    equal("maxima", best[used], block_maxima(kernel, blocks, count)[used])
    owners = torch.arange(rows - 1, -1, -1, device=device)  # the last row's go nowhere
    columns = torch.rand(tables, blocks, generator=rng, device=device).argsort(1).int()
    placed, wanted = (torch.full((rows, blocks), -1.0, device=device) for _ in range(2))
    run(weights, "triton", placed, Placement(owners, columns))
    for row in range(rows - 1):
        seen = used[row]
        wanted[owners[row], columns[row // next_n, seen].long()] = best[row, seen]
    equal("placed maxima", placed, wanted)
    return float(error)


def _operands(
    page: PageFormat, rows: int, heads: int, pages: int, rng: torch.Generator
) -> tuple[Tensor, Tensor | None, Tensor]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=rng.device)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        drawn = torch.randint(low, high, shape, generator=rng, device=rng.device)
        return drawn.to(torch.uint8)

    if page is FP8:
        keys = (normal(pages, BLOCK * DIM) * 20).to(torch.float8_e4m3fn).view(torch.uint8)
        scales = normal(pages, BLOCK).exp().view(torch.uint8)
        q = (normal(rows, heads, DIM) * 20).to(torch.float8_e4m3fn)
        return q, None, torch.cat((keys, scales), 1)
    packed = integers(0, 256, pages, BLOCK * DIM // 2)
    scales = integers(121, 133, pages, BLOCK * DIM // GROUP)
    q_scales = integers(121, 133, rows, heads, DIM // GROUP)
    return integers(0, 256, rows, heads, DIM // 2), q_scales, torch.cat((packed, scales), 1)


def checks(device: torch.device, tiny: bool) -> Iterator[tuple[str, Callable[[], float | None]]]:
    """Names and what they run; each raises Mismatch or returns an error that is allowed."""
    sizes = ((6, 4),) if tiny else ((70, 12), (1981, 6), (16_384, 4))
    for policy, (sparsity, divided), (blocks, steps) in product(
        ("spin", "prev-iter", "random"), SHARES, sizes
    ):
        share = f"{sparsity:g} by class" if divided else f"{sparsity:g}"
        name = f"fold_select, observe, audit: {policy} at {share}, {blocks} blocks"
        yield name, partial(life, policy, sparsity, divided, blocks, steps, device)
    lengths = [1, 64, 70, 129] if tiny else [0, 1, 64, 65, 700, 4097, 12_800, 126_750]
    heads = (16,) if tiny else HEADS
    for page, count, next_n in product((FP8, FP4), heads, (1, 2) if tiny else (1, 2, 4)):
        name = f"paged_logits: {page.name}, {count} heads, next_n {next_n}"
        yield name, partial(scores, page, count, next_n, lengths, device)


def main(arguments: list[str] | None = None) -> int:
    """Run every check, print a line each, and write them to --out."""
    options = check_options("python -m benchmarks.gpu_check_values", arguments)
    lines, failed = [], 0
    for name, check in checks(torch.device(options.device), options.tiny):
        try:
            error = check()
        except Mismatch as mismatch:
            failed += 1
            lines.append(f"FAILED {name}: {mismatch}")
        else:
            lines.append(f"ok     {name}" + (f": error {error:.1e} of the terms" if error else ""))
        print(lines[-1], flush=True)
    lines.append(f"{len(lines) - failed} of {len(lines)} checks passed")
    print(lines[-1])
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
