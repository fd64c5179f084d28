# SPDX-License-Identifier: Apache-2.0
"""Sections of the report: ceilings, row operations, matrix products, attention, the engine.

A section introduces its rows, shows them, and states the result of every figure.  Missing rows are
named where they would be shown.
"""

from base import disagg, plots, ranks, views
from claims import attention_claims
from sections import overlap_section, rdma_section, serving_section
from base.page import DASH, Html, code, fixed, join, num, percent, size_name, tbps, us


def rate(record):
    """(value, unit) of the rate that bounds a row: TFLOP/s if it computes, GB/s if it moves data."""
    if record.computes():
        return record.number("tflops"), "TFLOP/s"
    return record.number("gbps"), "GB/s"


def spread(record):
    """p95 relative to the median, as a percentage above it."""
    p95 = record.number("p95_ns")
    return DASH if not p95 or not record.ns else f"+{percent(max(0, p95 / record.ns - 1))}"


def speed_table(page, ctx, caption, cases, note=None, datasheet=False):
    """Our rows beside the fastest peer. Peers that were recorded in another run have an asterisk.

    datasheet: adds the share of the memory bandwidth of the datasheet.
    """
    with_peer = any(views.fastest_peer(t) for _, t in cases)
    columns = ["case", ">µs", ">p95", ">warm µs", ">rate", ">of ceiling"] + [">of datasheet"] * datasheet
    columns += [">peer µs", ">speed"] * with_peer
    out = []
    for record, table in cases:
        value, unit = rate(record)
        share, which = ctx.ceilings.share(record)
        own = record.impl in views.OURS
        cells = [
            code(record.case) if own else join([code(record.case), " by ", record.impl]),
            us(record.ns),
            spread(record),
            us(record.number("warm_ns")),
            f"{num(value)} {unit}" if value else DASH,
            f"{percent(share)} {which}" if share else DASH,
        ]
        if datasheet:
            peak = record.number("peak_pct")
            cells.append(percent(peak / 100) if peak else DASH)
        if with_peer:
            peer = views.fastest_peer(table)
            known = peer and record.ns and peer is not record
            mark = "*" if peer and views.other_run(record, peer) else ""
            cells += [us(peer.ns) + mark if peer else DASH, times(peer.ns / record.ns) + mark if known else DASH]
        out.append(cells)
    notes = []
    if with_peer:
        found = [p for p in (views.fastest_peer(t) for _, t in cases) if p]
        names = sorted({f"{p.impl} ({p.get('impl_version', '?')})" for p in found})
        others = any(p and views.other_run(r, p) for r, p in ((r, views.fastest_peer(t)) for r, t in cases))
        notes.append(f"Peer: {' or '.join(names)}, in the same run{'; *: in another run' if others else ''}. ")
        if any(p.get("rules") == "peer" for p in found):
            notes.append("Some of its rows cannot keep the contract and are judged by a rule of their own. ")
        notes.append("Speed: ours relative to theirs, above 1 is faster. ")
    page.table(caption, columns, out, join(notes + [note or ""]) if notes or note else None)


def times(ratio):
    return f"{ratio:.2f}×"


# ---------------------------------------------------------------- ceilings


def ceilings(page, ctx):
    page.section("Ceilings of this machine", "ceilings")
    page.para(
        "Every share in this report is relative to a ceiling measured in the same run: the fastest pure read of"
        " memory or the fastest matrix product. A kernel bound by memory is compared with the first, one bound by"
        " arithmetic with the second."
    )
    names = (("read", "pure read"), ("write", "pure write"), ("copy", "copy (read + write)"))
    series, table = [], []
    for word, name in names:
        found = sorted(
            (r for r in ctx.rows.find("stream", word, impl="cuda") if r.number("gbps") and r.number("bytes")),
            key=lambda r: r.get("bytes"),
        )
        if found:
            series.append(
                (name, [(r.get("bytes") / (2 if word == "copy" else 1), r.get("gbps") / 1000) for r in found])
            )
        top = ctx.ceilings.gbps()
        table += [
            [
                name,
                size_name(r.get("bytes") / (2 if word == "copy" else 1)),
                us(r.ns),
                spread(r),
                tbps(r.get("gbps")),
                percent(r.get("gbps") / top) if top else DASH,
                us(r.number("warm_ns")),
            ]
            for r in found
        ]
    peak = ctx.ceilings.datasheet()
    if series:
        read = next((data for name, data in series if name == "pure read"), [])
        caption = ["Memory throughput by buffer size, with inputs in no cache. "]
        if len(read) > 1:
            best = max(read, key=lambda p: p[1])
            caption.append(
                f"Reads rise from {read[0][1]:.2f} TB/s at {size_name(read[0][0])} to {best[1]:.2f} TB/s at "
                f"{size_name(best[0])}: every kernel has a ramp-up and a tail, so a small amount of work cannot reach "
                "the ceiling, however it is written. "
            )
            if peak:
                caption.append(
                    f"The datasheet gives {tbps(peak)} TB/s; this card reaches {percent(best[1] * 1000 / peak)} of that."
                )
        plot = plots.lines(
            series,
            "bytes",
            "TB/s",
            xtext=plots.tick_bytes,
            references=[(peak / 1000, f"datasheet {tbps(peak)}")] if peak else (),
        )
        page.figure(
            plot,
            join(caption),
            ["what", ">size", ">µs", ">p95", ">TB/s", ">of best read", ">µs, warm"],
            table,
        )
    lacking = [f"{word}_*" for word, name in names if name not in [s[0] for s in series]]
    if lacking:
        page.missing("stream rows", lacking)
    best = {}
    for r in ctx.rows.find("gemm"):
        if r.on_gpu and r.computes() and r.number("tflops"):
            key = r.dtype or "?"
            if key not in best or r.get("tflops") > best[key].get("tflops"):
                best[key] = r
    if best:
        page.table(
            "The fastest matrix product of each type: the ceilings for arithmetic.",
            ["type", "case", "by", ">TFLOP/s", ">µs", ">p95"],
            [[d, code(r.case), r.impl, num(r.get("tflops")), us(r.ns), spread(r)] for d, r in best.items()],
        )
    else:
        page.missing("a large gemm", ["gemm m*_n*_k*"])


# ---------------------------------------------------------------- operations

ROW_OPS = (
    ("rmsnorm", "rmsnorm, with and without the fused residual add"),
    ("rope", "rotary embedding"),
    ("silu_mul", "gated activation"),
    ("embedding", "embedding lookup"),
    ("argmax", "argmax"),
    ("sample", "sampling: temperature, top-k, top-p"),
    ("kv_append", "append to the paged cache"),
)


def row_ops(page, ctx):
    page.section("Row operations", "rows")
    page.para(
        "Row operations are bound by memory: the relevant figure is the share of the read stream. A single row at"
        " batch 1 is bound by the start of a kernel instead; there only the time in microseconds matters. ",
        Html("<em>Warm</em>"),
        " times are with inputs in the L2.",
    )
    lacking = []
    for op, title in ROW_OPS:
        cases = views.by_case(ctx.rows, op, where=lambda r: r.on_gpu)
        if cases:
            speed_table(page, ctx, join([code(op), f": {title}."]), cases)
        else:
            lacking.append(op)
    if lacking:
        page.missing("rows of some operations", lacking)


def gemm(page, ctx):
    page.section("Matrix products", "gemm")
    cases = views.by_case(ctx.rows, "gemm", where=lambda r: r.on_gpu)
    if not cases:
        page.missing("rows of gemm")
        return
    page.para(
        "Products of a few rows (decode) read the weights once and are bound by memory. Large products are left to"
        " cuBLASLt, as they are not the subject of this project; they are shown as the ceiling."
    )
    few = [(r, t) for r, t in cases if rate(r)[1] == "GB/s"]
    many = [(r, t) for r, t in cases if rate(r)[1] != "GB/s"]
    if few:
        names, ours, peers = [], [], []
        for record, table in few:
            peer = views.fastest_peer(table)
            names.append(record.case)
            ours.append(record.number("gbps") if record.impl in views.OURS else None)
            peers.append(peer.number("gbps") if peer else None)
        bars = []
        for name, o, p in zip(names, ours, peers):
            bars += [(f"{name}  ours", o / 1000, "ours")] if o else []
            bars += [(f"{name}  peer", p / 1000, "peer")] if p else []
        both = [(o / p) for o, p in zip(ours, peers) if o and p]
        caption = ["Weights read per second by products of few rows. "]
        if both:
            caption.append(f"Our kernel runs at {min(both):.2f} to {max(both):.2f} times the peer's speed.")
        read = ctx.ceilings.gbps()
        if bars:
            marks = [(read / 1000, "read stream")] if read else ()
            page.figure(
                plots.bars(bars, "TB/s", marks, text="{:.2f}"),
                join(caption),
                ["case", ">ours TB/s", ">peer TB/s"],
                [[code(n), tbps(o), tbps(p)] for n, o, p in zip(names, ours, peers)],
            )
        speed_table(page, ctx, "Products of few rows.", few)
    if many:
        speed_table(page, ctx, "Products of many rows.", many)
    alone = [r.case for r, t in cases if not views.fastest_peer(t)]
    if alone:
        page.missing("rows of gemm by cuBLASLt", alone)
    four_bits(page, ctx)


def four_bits(page, ctx):
    """Products with 4-bit weights, and what the same shapes take with 16 bits."""
    cases = views.by_case(ctx.rows, "gemm_w4", where=lambda r: r.on_gpu and r.ns)
    if not cases:
        page.missing("rows of gemm_w4")
        return
    speed_table(page, ctx, "Products with 4-bit weights. Separate kernels widen the weights to 16 bits first.", cases)
    wide = {r.case: t for r, t in views.by_case(ctx.rows, "gemm", where=lambda r: r.on_gpu and r.ns)}
    out = []
    for record, _ in cases:
        table = wide.get("_".join(record.case.split("_")[:3]) + "_bf16", {})
        library = table.get("peers")
        fastest = min(table.values(), key=lambda r: r.ns, default=None)
        if fastest:
            out.append(
                [
                    code(record.case),
                    us(record.ns),
                    us(fastest.ns),
                    us(library.ns) if library else DASH,
                    times(fastest.ns / record.ns),
                ]
            )
    if out:
        page.table(
            "What 4 bits save: the same shapes with weights in bf16, by the faster of our kernel and cuBLASLt.",
            ["case", ">4 bits µs", ">16 bits µs", ">cuBLASLt, 16 bits µs", ">saves"],
            out,
        )


def attention(page, ctx):
    page.section("Paged attention", "attention")
    cases = views.by_case(ctx.rows, "attn_paged", where=lambda r: r.on_gpu)
    if not cases:
        page.missing("rows of attn_paged")
        return
    page.para(
        "Attention over the paged KV cache. Decode is bound by reading K and V, prefill by arithmetic. Bytes are those"
        " of K, V, queries and output. The share is that of the read stream or of the fastest matrix product of this"
        " run, whichever is larger."
    )
    read = ctx.ceilings.gbps()
    series = {}
    for record, _ in cases:
        n = record.n
        if (
            "decode" in record.words
            and (n.get("h"), n.get("h2"), n.get("d")) == (32, 8, None)
            and record.dtype != "fp8"
            and record.number("gbps")
        ):
            series.setdefault(n.get("b"), []).append((n.get("kv"), record.get("gbps") / 1000))
    series = {b: sorted(d) for b, d in sorted(series.items()) if b and all(x for x, _ in d)}
    if series:
        low = next(iter(series.values()))
        page.figure(
            plots.lines(
                [(f"batch {b}", d) for b, d in series.items()],
                "keys per request",
                "TB/s of K and V",
                xtext=lambda v, _=None: f"{v / 1024:g}K" if v >= 1024 else f"{v:g}",
                references=[(read / 1000, f"read stream {tbps(read)}")] if read else [],
            ),
            join(
                [
                    (
                        "Decode with 32 query heads and 8 KV heads. Work grows to the right and upwards; the distance"
                        " to the ceiling at batch 1 is the ramp-up and the tail of a kernel that has little to"
                        " read"
                    ),
                    f" ({low[0][1]:.2f} TB/s at {low[0][0]} keys)." if low else ".",
                ]
            ),
            [">batch", ">keys", ">TB/s", ">of read stream"],
            [
                [str(b), str(x), fixed(y, 2), percent(y * 1000 / read) if read else DASH]
                for b, d in series.items()
                for x, y in d
            ],
        )
    for word, title in (
        ("decode", "Decode."),
        ("prefill", "Prefill."),
        ("append", "Append to a cached prefix."),
    ):
        group = [(r, t) for r, t in cases if word in r.words]
        if group:
            speed_table(page, ctx, title, group)
    rest = [(r, t) for r, t in cases if not {"decode", "prefill", "append"} & set(r.words)]
    if rest:
        speed_table(page, ctx, "Others.", rest)


# ---------------------------------------------------------------- engine


def engine(page, ctx):
    page.section("The engine", "engine")
    found = [r for r in ctx.rows.find("generate", where=lambda r: r.on_gpu and ":" not in r.impl) if r.ns]
    if not found:
        page.missing("rows of generate")
        return
    page.para(
        "Time per output token of ",
        code("cairn generate"),
        " on a model of the named shape with random weights: a whole step including sampling, through CUDA graphs."
        " Bytes are those that a step has to read, each weight once and the keys and values of its requests; their"
        " share of the read stream shows how near the step is to its lower bound.",
    )
    bars, rows = [], []
    read = ctx.ceilings.gbps()
    for r in found:
        share = views.stream_share(r, ctx.ceilings)
        floor = r.number("bytes") / read if r.number("bytes") and read else None
        if share:
            bars.append((r.case, share * 100, "share"))
        batch = r.n.get("b", 1)
        first = r.number("first_token_ns")
        rows.append(
            [
                code(r.case),
                f"{r.ns / 1e6:.3f}",
                spread(r),
                fixed(floor / 1e6, 3) if floor else DASH,
                num(round(batch * 1e9 / r.ns)),
                tbps(r.number("gbps")),
                percent(share),
                f"{first / 1e6:.1f}" if first else DASH,
                "differ" if r.get("ok") is False else "equal",
            ]
        )
    columns = [
        "case",
        ">per token",
        ">p95",
        ">floor",
        ">tokens/s",
        ">TB/s",
        ">of stream",
        ">first token",
        "runs",
    ]
    if bars:
        page.figure(
            plots.bars(bars, "% of the read stream", [(70, "target at batch 1: 70%")]),
            "Share of the read stream that whole decode steps reach. Published whole-model figures on an H200 are 65 to"
            " 68% of its datasheet's 4.8 TB/s (Llama-3.2-1B, batch 1).",
            ["case", ">of read stream"],
            [[code(n), f"{v:.1f}%"] for n, v, _ in bars],
        )
    page.table(
        "Decoding, times in ms. Floor: the time to read the bytes of a step at the speed of the read stream.",
        columns,
        rows,
    )


# ---------------------------------------------------------------- the decode step


def decode_step(page, ctx):
    page.section("The decode step", "decode-step")
    found = ctx.rows.find("decode_step", where=lambda r: r.on_gpu and r.ns)
    steps = [r for r in found if "layer" not in r.words]
    layers = [(r, t) for r, t in views.by_case(ctx.rows, "decode_step") if "layer" in r.words]
    if not found:
        page.missing("rows of decode_step")
        return
    page.para(
        "From the embedding to the sampled token. Table ",
        code("cuda"),
        " is the form that the engine chooses; a suffix behind a colon names a form that was requested: one of the"
        " two forms of the fused step, or ",
        code("unfused"),
        ", the same step as a list of operations.",
    )
    read = ctx.ceilings.gbps()
    lists = {r.case: r.ns for r in steps if r.impl.endswith("unfused")}
    out = []
    for r in steps:
        peak, num_bytes, other = r.number("peak_pct"), r.number("bytes"), lists.get(r.case)
        out.append(
            [
                code(r.case),
                r.impl,
                fixed(r.ns / 1e6, 3),
                spread(r),
                fixed(num_bytes / read / 1e6, 3) if num_bytes and read else DASH,
                percent(views.stream_share(r, ctx.ceilings)),
                percent(peak / 100) if peak else DASH,
                times(other / r.ns) if other and other != r.ns else DASH,
            ]
        )
    columns = [
        "case",
        "table",
        ">per token",
        ">p95",
        ">floor",
        ">of stream",
        ">of the datasheet",
        ">against unfused",
    ]
    if out:
        page.table(
            "Whole steps in the engine, times in ms; rows of table unfused and cases named after a form are from cairn"
            " bench, without the engine. Floor: the time to read the bytes of a step at the speed of the read stream."
            " Against unfused: above 1 is faster.",
            columns,
            out,
        )
    if layers:
        speed_table(
            page, ctx, "One layer of a published model with a vocabulary of 1024.", layers, datasheet=True
        )
    experts = views.by_case(ctx.rows, "moe", where=lambda r: r.on_gpu and r.ns)
    if experts:
        speed_table(
            page, ctx, "Routing, experts and shared experts of one layer (moe).", experts, datasheet=True
        )


# ---------------------------------------------------------------- the rest

KNOWN = {
    "stream",
    "dsmem",
    "cluster_reduce",
    "cluster_gather",
    "gemm",
    "gemm_w4",
    "attn_paged",
    "generate",
    "decode_step",
    "cluster_attn",
    "cluster_mla",
    "moe",
    "traffic",
} | {o for o, _ in ROW_OPS} | attention_claims.KNOWN | overlap_section.KNOWN | ranks.KNOWN | disagg.KNOWN | rdma_section.KNOWN | serving_section.KNOWN


def others(page, ctx):
    """Shows operations that have no section of their own."""
    ops = [op for op in ctx.rows.ops() if op not in KNOWN]
    if not ops:
        return
    page.section("Other operations", "others")
    for op in ops:
        speed_table(page, ctx, join([code(op), "."]), views.by_case(ctx.rows, op))
