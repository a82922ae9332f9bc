"""Options that would make SPIN wrong or inactive are refused by name, before anything starts."""

from __future__ import annotations

import dis
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_spin.cpu.models import default_cache_dir, ensure_model
from sglang_spin.engine.model_refusals import MACHINES, MODELS, model_refusal
from sglang_spin.engine.refusals import REFUSALS, Refusal
from tests.engine.resolved_options import Case, outcomes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "support.md"

# command lines that must meet each refusal, by its option; environment where it is a variable
ASKED: dict[str, Case] = {
    "an --attention-backend other than dsa or dsv4": (["--attention-backend=triton"], {}),
    "a --decode-attention-backend of another kind than --attention-backend": (
        ["--decode-attention-backend=triton"],
        {},
    ),
    "a --prefill-attention-backend of another kind than --attention-backend": (
        ["--prefill-attention-backend=triton"],
        {},
    ),
    "--spin-scorer fused with --dsa-paged-mqa-logits-backend": (
        ["--dsa-paged-mqa-logits-backend=cutedsl"],
        {"SPIN_SCORER": "fused"},
    ),
    "--decoupled-spec-role": (["--decoupled-spec-role=drafter"], {}),
    "--dsa-topk-backend other than sgl-kernel": (["--dsa-topk-backend=torch"], {}),
    "SGLANG_OPT_USE_TOPK_V2=0": ([], {"SGLANG_OPT_USE_TOPK_V2": "n"}),
    "SGLANG_DSA_FUSE_TOPK=0": ([], {"SGLANG_DSA_FUSE_TOPK": "False"}),
    "--dsa-paged-mqa-logits-backend aiter": (["--dsa-paged-mqa-logits-backend=aiter"], {}),
    "--enable-dsa-fused-indexer": (["--enable-dsa-fused-indexer"], {}),
    "--enable-nvidia-megakernel": (["--enable-nvidia-megakernel"], {}),
    "--enable-amd-monokernel": (["--enable-amd-monokernel"], {}),
    "--enable-torch-compile": (["--enable-torch-compile"], {}),
    "--cuda-graph-backend-decode breakable": (["--cuda-graph-backend-decode=breakable"], {}),
    "--enable-hisparse": (["--enable-hisparse", "--disable-radix-cache"], {}),
    "--enable-two-batch-overlap": (["--enable-two-batch-overlap", "--moe-a2a-backend=deepep"], {}),
    "--enable-mixed-chunk": (["--enable-mixed-chunk"], {}),
    "--dllm-algorithm": (["--dllm-algorithm=LowConfidence"], {}),
    "--is-embedding": (["--is-embedding"], {}),
    "--encoder-only": (["--encoder-only"], {}),
    "--enable-unified-memory": (["--enable-unified-memory"], {}),
    "--radix-cache-backend": (["--radix-cache-backend=other"], {}),
    "--enable-lmcache": (["--enable-lmcache"], {}),
    "--enable-flexkv": (["--enable-flexkv"], {}),
    "--enable-unified-cache-external-linker": (["--enable-unified-cache-external-linker"], {}),
    "--enable-streaming-session": (["--enable-streaming-session"], {}),
    "--enable-kv-cache-sharding": (["--enable-kv-cache-sharding"], {}),
    "--enable-dsa-cache-layer-split": (["--enable-dsa-cache-layer-split"], {}),
    "--dcp-size above 1": (["--dcp-size=2", "--tp-size=2"], {}),
    "--attn-cp-size above 1": (["--attn-cp-size=2", "--tp-size=2"], {}),
    "--pp-size above 1": (["--pp-size=2"], {}),
    "--elastic-ep-backend": (["--elastic-ep-backend=nixl"], {}),
    "--disaggregation-mode": (["--disaggregation-mode=decode"], {}),
    "--enable-pdmux": (["--enable-pdmux"], {}),
    "--use-ray": (["--use-ray"], {}),
}


# SGLang itself refuses these with this model; ours stands for the models where it does not
SGLANG_FIRST = {
    "--dllm-algorithm",
    "--encoder-only",
    "--enable-unified-memory",
    "--enable-kv-cache-sharding",
    "--enable-dsa-cache-layer-split",
}
# no command line here reaches these: SGLang derives the value, or an earlier entry of the table
# refuses it first; SPIN_SCORER=fused is set for all of them
DERIVED: dict[str, dict[str, object]] = {
    "--page-size other than 64 (dsa) or 256 (dsv4)": {"attention_backend": "dsa", "page_size": 128},
    "--dsv4-attn-backend other than flashmla": {
        "attention_backend": "dsv4",
        "dsv4_attn_backend": "trtllm",
    },
    "--enable-return-indexer-topk with dsv4": {
        "attention_backend": "dsv4",
        "enable_return_indexer_topk": True,
    },
    "--speculative-algorithm other than EAGLE, NEXTN or NGRAM": {"speculative_algorithm": "EAGLE3"},
    "--speculative-algorithm with dsv4": {
        "attention_backend": "dsv4",
        "speculative_algorithm": "EAGLE",
    },
    "a --speculative-eagle-topk or --speculative-ngram-max-bfs-breadth above 1": {
        "speculative_algorithm": "EAGLE",
        "speculative_eagle_topk": 2,
    },
    "--speculative-adaptive or --enable-multi-layer-eagle": {
        "speculative_adaptive": False,
        "enable_multi_layer_eagle": True,
    },
    "--spin-scorer fused or --spin-policy spin-paper with --speculative-algorithm": {
        "speculative_algorithm": "EAGLE"
    },
    "--spin-scorer fused with an --attention-backend other than dsa": {"attention_backend": "dsv4"},
    "a --device other than cuda or cpu": {"device": "xpu"},
}


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """What SGLang's own option resolution, SPIN's plugin loaded, says to each of ASKED."""
    model = ensure_model("tiny-dsa", default_cache_dir())
    chain: Case = (["--speculative-algorithm=NGRAM", "--speculative-ngram-max-bfs-breadth=1"], {})
    found = outcomes(model, [([], {}), chain, *ASKED.values()])
    return dict(zip(["", "chain", *ASKED], found, strict=True))


def _refusal(option: str) -> Refusal:
    return next(r for r in REFUSALS if r.option == option)


def test_plain_serving_is_not_refused(answers: dict[str, str]) -> None:
    """The options of an ordinary DSA server pass."""
    assert answers[""] == ""


def test_chains_of_drafts_are_served(answers: dict[str, str]) -> None:
    """Speculation with one draft per position passes SGLang's resolution and ours."""
    assert answers["chain"] == ""


@pytest.mark.parametrize("option", ASKED)
def test_each_option_is_refused_in_one_line(answers: dict[str, str], option: str) -> None:
    """Asked for on the command line, the option ends the server with its name, why and a way on."""
    if option in SGLANG_FIRST:
        assert answers[option] != ""
        assert "sglang_spin" not in answers[option]
        return
    why = _refusal(option).why
    want = f"sglang_spin: {option} is not supported: {why}; or start with --no-spin"
    assert answers[option] == f"SystemExit: {want}"


def test_every_refusal_is_met_by_a_test() -> None:
    """No entry of the table without a command line or a case that meets it, and none twice."""
    options = [r.option for r in (*REFUSALS, *MODELS, *MACHINES)]
    assert len(options) == len(set(options))
    assert {r.option for r in REFUSALS} == {*ASKED, *DERIVED}


@pytest.mark.parametrize("option", [*DERIVED, *sorted(SGLANG_FIRST)])
def test_derived_values_are_refused(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """Values that no command line reaches here are refused by the same rule."""
    monkeypatch.setenv("SPIN_SCORER", "fused")
    values = DERIVED.get(option) or {_field(option): True}
    assert _refusal(option).refused(SimpleNamespace(**values))


def _field(option: str) -> str:
    return option.split()[0].removeprefix("--").replace("-", "_")


def test_gpus_of_other_makes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A HIP build of torch, and SM120, are refused; Hopper and Blackwell are not."""
    import torch

    plain = SimpleNamespace(model_type="deepseek_v32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    verdicts = {}
    for major in (8, 9, 10, 12):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda major=major: (major, 0))
        verdicts[major] = model_refusal(plain) is not None
    assert verdicts == {8: True, 9: False, 10: False, 12: True}
    assert "SM120" in str(model_refusal(plain))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "HIP" in str(model_refusal(plain))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"index_kpool": 2}, "KPool"),
        ({"index_local_tokens": 64}, "index_local_tokens"),
        ({"index_init_tokens": 1}, "index_init_tokens"),
        ({"model_type": "deepseek_v41"}, "DeepSeek-V4.1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_models_are_refused_by_their_config(config: dict[str, object], named: str) -> None:
    """The line names what the model has; a plain DSA config passes."""
    plain = {"model_type": "deepseek_v32", "index_topk": 2048, "index_kpool": 1}
    assert model_refusal(SimpleNamespace(**plain)) is None
    assert named in str(model_refusal(SimpleNamespace(**plain | config)))


def test_options_are_read_by_names_that_exist() -> None:
    """Every option named or looked at is a field of SGLang: a renamed one must not pass as off."""
    from sglang.srt.server_args import ServerArgs

    fields = set(ServerArgs.__struct_fields__)
    for refusal in REFUSALS:
        named = re.findall(r"--(?!spin-)([a-z0-9-]+)", refusal.option)
        assert {name.replace("-", "_") for name in named} <= fields
        assert _attributes(refusal) <= fields


def _attributes(refusal: Refusal) -> set[str]:
    """Names that the rule reads from the options."""
    return {
        str(after.argval)
        for before, after in pairwise(dis.get_instructions(refusal.refused))
        if before.opname == "LOAD_FAST" and after.opname == "LOAD_ATTR"
    }


def test_the_page_says_what_the_code_does() -> None:
    """docs/support.md holds exactly these refusals, in this order, with these reasons."""
    text = PAGE.read_text(encoding="utf-8")
    tables = {"Refused options": REFUSALS, "Refused models": MODELS, "Refused GPUs": MACHINES}
    for heading, table in tables.items():
        section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        rows = [
            tuple(c.strip() for c in line.strip("|").split("|"))
            for line in section.splitlines()
            if line.startswith("| ")
        ][1:]
        assert rows == [(r.option, r.why) for r in table], _expected(table)


def _expected(table: tuple[Refusal, ...]) -> str:
    return "\n".join(f"| {r.option} | {r.why} |" for r in table)


def test_supported_options_are_real_and_proven() -> None:
    """Each supported row names options that SGLang has and tests that exist."""
    from sglang.srt.server_args import ServerArgs

    section = PAGE.read_text(encoding="utf-8").partition("## Served\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        options, _, proof = (cell.strip() for cell in row.strip("|").split("|"))
        for name in re.findall(r"`--([a-z0-9-]+)", options):
            assert name.replace("-", "_") in ServerArgs.__struct_fields__
        paths = re.findall(r"`(tests/[^`]+)`", proof)
        assert paths
        assert all((ROOT / path).exists() for path in paths)
