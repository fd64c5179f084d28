# SPDX-License-Identifier: Apache-2.0
"""Section of the report: attention over contiguous keys, block-sparse attention, fp8, gradients, counted bytes, and
FlashInfer's tests.

claims/attention_claims.py and claims/flashinfer_claims.py have the claims decided by these rows.
"""

from base import plots, views
from sections import operations
from claims.attention_claims import ALGORITHMS, CAUSAL, MANY, ONE, SHOWN, fewer_bytes, keys, teach, value
from claims.flashinfer_claims import LENGTHS, SAMPLES
from sections.fused_section import curve, spans
from base.page import DASH, code, join, num, size_name

# (series, op, end of the case)
RATES = (
    ("bf16 causal", "attn_dense", "causal_bf16"),
    ("bf16 full", "attn_dense", "bf16"),
    ("fp8 causal", "attn_fp8", "causal_bf16"),
    ("fp8 full", "attn_fp8", "bf16"),
    ("gradients causal", "attn_bwd", "causal_bf16"),
    ("gradients full", "attn_bwd", "bf16"),
)


def bars(page, caption, names, series, unit, text="{:.0f}"):
    """Groups of bars; series: [(name, [value or None])]. Draws nothing without a value."""
    series = [(name, values) for name, values in series if any(v is not None for v in values)]
    if not series:
        return
    page.figure(
        plots.columns(names, series, "", unit, text),
        caption,
        ["series", "case", f">{unit}"],
        [[name, of, num(v) if v is not None else DASH] for name, values in series for of, v in zip(names, values)],
    )


def speed(page, rows):
    bars(
        page,
        "The forward pass in 16 bits and in fp8, and the gradients (claims AT-5 to AT-7): 16 heads of 128. The rate counts"
        " the pairs that the mask admits, and five products for each of them in the gradients.",
        [f"{name} tokens" for name, _ in CAUSAL],
        [(name, [value(rows, op, f"{case}_{end}", "tflops") for _, case in CAUSAL]) for name, op, end in RATES],
        "TFLOP/s",
    )


def heads(page, rows):
    series = []
    for name, cases in (("16 requests", MANY), ("1 request", ONE)):
        found = sorted((n, value(rows, "attn_paged", case)) for n, case in cases.items() if value(rows, "attn_paged", case))
        series.append((name, [(n, ns / 1000) for n, ns in found]))
    curve(
        page,
        "Time of decoding by the number of KV heads (claim AT-1): 32 query heads of 128, 4096 keys a request. "
        + spans(series, "{:.1f} µs".format)
        + ".",
        series,
        "KV heads",
        "µs",
        lambda v, _=None: f"{v:g}",
    )


def tokens(n, _=None):
    return keys(int(n))


def counted(page, rows):
    """Bytes of the algorithms relative to standard attention, and the memory that they need."""
    lines = (("flash2:causal", "FlashAttention-2, causal"), ("flash2", "FlashAttention-2"), ("flash1", "FlashAttention"))
    found = [(f"{name}, {d}", fewer_bytes(rows, impl, d)) for d in ("forward", "backward") for impl, name in lines]
    series = [(name, data) for name, data in found if data]
    if series:
        page.figure(
            plots.lines(series, "tokens", "times fewer bytes", xtext=tokens, references=[(1, "standard")]),
            "Bytes that standard attention moves between memory and the chip, relative to FlashAttention's, by length (claims"
            " AT-3 and AT-7): counted on a simulated machine with 100 KiB of SRAM, one head of 64, 16-bit elements. Standard"
            " attention computes masked pairs, too.",
            ["series", ">tokens", ">times fewer bytes"],
            [[name, keys(n), f"{v:.2f}"] for name, data in series for n, v in data],
            of="",
        )
    memory = {(impl, d): dict(teach(rows, impl, f"{d}_memory_bytes")) for impl in ALGORITHMS for d in ("forward", "backward")}
    found = sorted({n for values in memory.values() for n in values})
    if found:
        page.table(
            "Memory that the passes of a head allocate besides inputs and results, counted in the same way.",
            ["algorithm", "pass", *(f">{keys(n)}" for n in found)],
            [
                [ALGORITHMS[impl], d, *(size_name(values.get(n, 0)) for n in found)]
                for (impl, d), values in memory.items()
            ],
            of="",
        )


def sparse(page, rows):
    both = [
        (name, [value(rows, "attn_bsr", prefix + case) for _, case in SAMPLES])
        for name, prefix in (("two parts", ""), ("one list", "one_list_"))
    ]
    if any(both[1][1]):
        bars(
            page,
            "Samples of one prompt (claim FI-3): a part of the prompt, read once for all samples, and a part of each"
            " sample; against one list of blocks for each sample.",
            [name for name, _ in SAMPLES],
            [(name, [v / 1000 if v else None for v in values]) for name, values in both],
            "µs",
            "{:.1f}",
        )
    planned = [value(rows, "attn_bsr", case, "gbps") for _, case, _ in LENGTHS]
    fixed = [value(rows, "attn_paged", case, "gbps") for _, _, case in LENGTHS]
    known = [value(rows, "attn_paged", case.replace("lengths_", "known_"), "gbps") for _, _, case in LENGTHS]
    if any(planned):
        bars(
            page,
            "Decoding of 16 requests of equal and of unequal lengths (claim FI-5): a plan that cuts all keys into equal"
            " shares, fixed splits, and splits by length where the host knows the number of all keys (nnz_kv).",
            [name for name, _, _ in LENGTHS],
            [("planned (attn_bsr)", planned), ("fixed (attn_paged)", fixed), ("by length (attn_paged)", known)],
            "GB/s",
        )


def refused(record):
    """Reasons why tests of a file found no feature, most frequent first: `head_dim 512` 12, ..."""
    counts = {}
    for name in ("refusals", "modules"):
        for reason, count in (record.get(name) or {}).items():
            counts[reason] = counts.get(reason, 0) + count
    return ", ".join(f"{reason} ({count})" for reason, count in sorted(counts.items(), key=lambda x: (-x[1], x[0])))


def dropin(page, rows):
    """FlashInfer's own tests over our kernels (tools/dropin.sh)."""
    found = [r for r in rows.find("dropin", impl="cuda") if all(r.number(n) is not None for n in GRID)]
    if not found:
        return
    total = {name: sum(int(r.number(name)) for r in found) for name in GRID}
    page.table(
        f"FlashInfer's own tests over our kernels, which its code loads in the place of its modules ({found[0].get('impl_version')}):"
        f" {total['passed']} passed and {total['failed']} failed. A fixed sample of each file was run. Refused: tests that need a"
        " feature that our kernels report as not supported. Missing: tests that FlashInfer skipped because our folder has no module"
        " of the name that it looked for. Skipped: tests that skip themselves or expect to fail. Left: tests for which there was no"
        " time or memory.",
        ["file", *(f">{name}" for name in GRID), "refused and missing"],
        [[code(r.case), *(f"{int(r.number(n))}" for n in GRID), refused(r) or DASH] for r in found],
    )


GRID = ("tests", "chosen", "passed", "failed", "refused", "missing", "skipped", "left")
TITLES = {
    "attn_dense": "attention over contiguous keys",
    "attn_fp8": "the same in fp8; outliers_* are small and judged by their error",
    "attn_quant": "quantisation to fp8, with and without rotation",
    "attn_bwd": "gradients",
    "attn_bsr": "attention over lists of blocks. Bytes are those of the listed blocks, once for each row that lists them, so"
    " that a rate of blocks that rows share may exceed what memory gives",
    "attn_merge": "merge of partial results",
    "attn_variant": "variants",
}


def section(page, ctx):
    page.section("The attention engine", "engine-attention")
    rows = ctx.rows
    page.para(
        "Attention beyond the paged kernel: over contiguous keys, in fp8, over lists of blocks, and the gradients. The"
        " claims FI-1 to FI-7 and AT-1 to AT-7 are decided by these rows."
    )
    cases = {op: views.by_case(rows, op, where=lambda r: r.on_gpu and r.ns) for op in SHOWN}
    lacking = [f"{op} *" for op in SHOWN[:-1] if not cases[op]]
    if lacking:
        page.missing("rows of these operations", lacking)
    speed(page, rows)
    heads(page, rows)
    sparse(page, rows)
    counted(page, rows)
    dropin(page, rows)
    for op, found in cases.items():
        if found:
            operations.speed_table(page, ctx, join([code(op), f": {TITLES[op]}."]), found)
