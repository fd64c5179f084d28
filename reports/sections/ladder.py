# SPDX-License-Identifier: Apache-2.0
"""Section of the report: attention in steps, the tables ladder1 to ladder5 (fused/attention/ladder/README.md)."""

from base import plots, views
from base.page import DASH, code, num, us

FORWARD = (
    ("causal, 4 x 4096", "h16_d128_b4_s4096_causal_bf16"),
    ("full, 1 x 16384", "h16_d128_b1_s16384_bf16"),
)
DECODE = (
    ("1 request of 16384 keys", "decode_h32_8_b1_kv16384_bf16"),
    ("64 requests of 4096 keys", "decode_h32_8_b64_kv4096_bf16"),
)
# steps and, last, the production kernel, which is table cuda: {table: name}
FORWARD_STEPS = {
    "ladder1": "1 a thread a row",
    "ladder2": "2 tiles",
    "ladder3": "3 mma, cp.async",
    "ladder4": "4 wgmma, TMA",
    "ladder5": "5 ping-pong",
    "cuda": "6 attn_dense",
}
DECODE_STEPS = {
    "ladder1": "1 a warp a head",
    "ladder2": "2 shared keys",
    "ladder3": "3 split keys",
    "ladder4": "4 mma, cp.async",
    "cuda": "attn_paged",
}


def figure(page, rows, op, cases, steps, value, unit, caption):
    """One group of bars for each step, one bar for each case; value(record): its height, or None."""
    series, marks, table = [], [], []
    for name, case in cases:
        found = {r.impl: r for r in rows.find(op, where=lambda r, case=case: r.case == case and r.on_gpu)}
        heights = [value(found[impl]) if impl in found else None for impl in steps]
        if not any(h for h, impl in zip(heights, steps) if impl in views.STEPS):
            continue
        series.append((name, heights))
        table += [
            [code(case), step, us(found[impl].ns) if impl in found else DASH, num(height)]
            for (impl, step), height in zip(steps.items(), heights)
        ]
        peer = views.fastest_peer(found)
        if peer and value(peer):
            marks.append((value(peer), f"{peer.impl}, {name}"))
            table.append([code(case), peer.impl, us(peer.ns), num(value(peer))])
    if series:
        plot = plots.columns(list(steps.values()), series, "", unit, marks=marks)
        page.figure(plot, caption, ["case", "step", ">µs", f">{unit}"], table)


def section(page, ctx):
    """Draws the ladder; without rows of its steps there is no such section."""
    if not any(r.impl in views.STEPS for r in ctx.rows):
        return
    read = ctx.ceilings.gbps()
    page.section("Attention in steps", "ladder")
    page.para(
        "Kernels for readers, each of which adds one technique to the one before it: ",
        code("fused/attention/ladder/README.md"),
        " explains them. Every step passes the cases of the suite that it takes. The last bars are the kernel that the"
        " other sections measure.",
    )
    figure(
        page,
        ctx.rows,
        "attn_dense",
        FORWARD,
        FORWARD_STEPS,
        lambda r: r.number("tflops"),
        "TFLOP/s",
        "The forward pass in six steps: 16 heads of 128, bf16. A line is the fastest peer of the same run.",
    )
    figure(
        page,
        ctx.rows,
        "attn_paged",
        DECODE,
        DECODE_STEPS,
        lambda r: r.number("gbps") / read * 100 if read and r.number("gbps") else None,
        "% of the read stream",
        "Decoding in four steps, and the production kernel: 32 query and 8 KV heads of 128, pages of 16, bf16.",
    )
