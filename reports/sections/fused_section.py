# SPDX-License-Identifier: Apache-2.0
"""Section of the report: the fused operations."""

from base import plots, views
from sections import operations
from claims.fused_claims import (
    CHAIN,
    LENGTHS,
    by_cluster,
    decode_shares,
    gain,
    head_over_token,
    ns,
    offchip,
    ratio,
    size,
    step_gain,
    targets,
    there,
)
from base.page import DASH, code, fixed, num, us


def curve(page, caption, series, xlabel, ylabel, xtext, references=()):
    """A figure with its table; series: [(name, [(x, y)])].  Returns False if there is no data."""
    series = [(name, data) for name, data in series if data]
    if not series:
        return False
    page.figure(
        plots.lines(series, xlabel, ylabel, xtext=xtext, references=references),
        caption,
        ["series", f">{xlabel}", f">{ylabel}"],
        [[name, xtext(x), fixed(y, 2)] for name, data in series for x, y in data],
    )
    return True


def keys_text(v, _=None):
    return size(v)


def plain(v, _=None):
    return f"{v:g}"


def against_chain(rows):
    for name, op, shape in (
        ("Llama-2-7B", "cluster_attn", "llama2_7b_b1"),
        ("Llama-3-8B", "cluster_attn", "llama3_8b_b1"),
        ("Llama-2-7B, batch 16", "cluster_attn", "llama2_7b_b16"),
        ("DeepSeek-V2-Lite", "cluster_mla", "dsv2lite_b1"),
        ("DeepSeek-V2-Lite, batch 16", "cluster_mla", "dsv2lite_b16"),
    ):
        yield name, there((k, gain(rows, op, f"{shape}_kv{k}")) for k in LENGTHS)


def against_list(rows):
    for name, shape in (
        ("Llama-2-7B", "llama2_7b_b1"),
        ("Llama-3-8B", "llama3_8b_b1"),
        ("Llama-3.2-1B", "llama32_1b_b1"),
        ("DeepSeek-V2-Lite", "dsv2lite_b1"),
    ):
        yield name, there((k, step_gain(rows, f"{shape}_kv{k}")) for k in LENGTHS)


def spans(series, text):
    """The range of each series in words: 'Llama-2-7B 1.00 to 1.04; ...'"""
    out = []
    for name, data in series:
        low, high = min((y for _, y in data), default=None), max((y for _, y in data), default=None)
        if data:
            out.append(f"{name} {text(low)}" + (f" to {text(high)}" if text(low) != text(high) else ""))
    return "; ".join(out)


def without_dsmem(rows):
    ratio_to = ratio(rows, "llama2_7b_b1_kv4096_token_c4", "llama2_7b_b1_kv4096")
    if not ratio_to:
        return ""
    return (
        f" The grid, which sends nothing through DSMEM, takes {ratio_to:.2f} times as long as SPLIT_TOKEN at cluster"
        " size 4."
    )


def fastest(series):
    best = [(min(data, key=lambda p: p[1])[0], name) for name, data in series if data]
    return "Fastest: " + ", ".join(f"{c} at {name}" for c, name in best) + "."


def kilobytes(v):
    return num(None if v is None else round(v / 1000))


def traffic_tables(page, rows):
    """Figure 12 of the source, by hardware counters."""
    found = rows.find("traffic", where=lambda r: r.number("store_bytes") is not None)
    if not found:
        page.missing("hardware counters (figure 12 of the source)", ["traffic *: reports/traffic.py"])
        return
    page.table(
        "Figure 12 of the source, by hardware counters, for one call: kernels launched; kB read from and written to"
        " memory, beside the necessary kB of weights, keys and results; kB that kernels store to global memory, nearly"
        " all of which stay in the L2; kB received through DSMEM in sectors of 32 bytes (an st.async of 8 bytes counts"
        " as 32), beside those of the schedule.",
        ["case", "table", ">launches", ">read", ">written", ">needed", ">stored", ">DSMEM", ">schedule"],
        [
            [
                code(r.case),
                code(r.impl),
                f"{r.need('launches'):.0f}",
                kilobytes(r.number("dram_read_bytes")),
                kilobytes(r.number("dram_write_bytes")),
                kilobytes(r.number("bytes") or None),
                kilobytes(r.number("store_bytes")),
                kilobytes(r.number("dsmem_counted_bytes")),
                kilobytes(r.number("dsmem_model_bytes")),
            ]
            for r in found
        ],
    )


def section(page, ctx):
    page.section("Fused cluster attention", "fused")
    rows = ctx.rows
    cases = {
        op: views.by_case(rows, op, where=lambda r: r.on_gpu and r.ns) for op in ("cluster_attn", "cluster_mla")
    }
    lacking = [f"{op} *" for op, found in cases.items() if not found]
    if lacking:
        page.missing("rows of the fused module", lacking)
    page.para(
        "The attention block in one kernel, from the norm to the residual add; fused/README.md draws the dataflows."
        f" Unfused means {CHAIN}."
    )
    chain, steps, off = list(against_chain(rows)), list(against_list(rows)), []
    for flow in ("token", "head"):
        off.append((f"SPLIT_{flow.upper()}", offchip(rows, flow)))
    heads = [
        (f"{h} heads", [(c, t / 1000) for c, t in by_cluster(rows, f"heads{h}_b1_kv4096_token")])
        for h in (32, 64, 128)
    ]
    flows = [
        (name, there((k, (ns(rows, "cluster_attn", f"llama2_7b_b1_kv{k}{end}") or 0) / 1000) for k in LENGTHS))
        for name, end in (("SPLIT_TOKEN", "_token_c4"), ("SPLIT_HEAD", "_head_c4"), ("grid (AUTO)", ""))
    ]
    slower = head_over_token(rows)
    figures = (
        (
            "Figures 9 and 17 to 19 of the source: speed of the fused module relative to unfused, by length. "
            + spans(chain, "{:.2f}".format)
            + ".",
            chain,
            "keys",
            "times as fast",
            keys_text,
            [(1, "unfused")],
        ),
        (
            "Figure 8 of the source: speed of the whole fused step relative to the step as a list of unfused"
            " operations. "
            + spans(steps, "{:.2f}".format)
            + ".",
            steps,
            "keys",
            "times as fast",
            keys_text,
            [(1, "unfused")],
        ),
        (
            "Figure 11 of the source: time by cluster size and number of heads, SPLIT_TOKEN, 4096 keys. "
            + fastest(heads),
            heads,
            "cluster size",
            "µs",
            plain,
            (),
        ),
        (
            "Figure 13 of the source: time with exchanges through global memory, relative to exchanges through DSMEM. "
            + spans(off, "{:.2f}".format)
            + "."
            + without_dsmem(rows),
            off,
            "cluster size",
            "relative time",
            plain,
            [(1, "DSMEM")],
        ),
        (
            "Figures 16 and 20 of the source: SPLIT_TOKEN and SPLIT_HEAD at cluster size 4, and the grid, Llama-2-7B."
            " SPLIT_HEAD takes " + ", ".join(f"{v:.2f} times as long at {k}" for k, v in slower) + ".",
            flows,
            "keys",
            "µs",
            keys_text,
            (),
        ),
    )
    without = [figure[0].partition(":")[0] for figure in figures if not curve(page, *figure)]
    if without:
        page.missing("the rows of these figures", without)
    moved = [
        [code(r.case), num(int(r.number("dsmem_model_bytes"))), us(r.ns)]
        for r, _ in cases["cluster_attn"]
        if r.number("dsmem_model_bytes") is not None
    ]
    traffic_tables(page, rows)
    if moved:
        page.table(
            "Bytes through DSMEM in one call, counted by the schedule (a lower bound).",
            ["case", ">bytes through DSMEM", ">µs"],
            moved,
        )
    shares = decode_shares(rows)
    if shares:
        page.table(
            "Figure 2 of the source: share of decoding in the latency of 256 tokens.",
            ["request", ">share"],
            [[code(case), f"{100 * v:.1f}%"] for case, v in shares],
        )
    for op, found in cases.items():
        if found:
            operations.speed_table(page, ctx, f"{op}, every row.", found, datasheet=True)
    marks = [
        [t.what, t.wanted, t.here if t.measured() else DASH, t.verdict()[1]]
        for t in targets(rows, ctx.ceilings)
    ]
    page.table("The targets of the fused operations.", ["figure", "target", "this machine", "verdict"], marks)
