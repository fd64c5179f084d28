#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the results table of README.md, between its two marker comments, from a recording.

python3 reports/readme_table.py           writes the table
python3 reports/readme_table.py --check   writes nothing; exit status 1 if the table is not that of the recording
"""

import argparse
import os
import sys

import report_claims
import report_peers
import report_rdma
import report_serving
import report_views as views
from report_page import DASH, num, percent, tbps, us
from report_records import BadRecords, Ceilings, Machine, load

BEGIN, END = "<!-- results -->", "<!-- /results -->"
SIZES = (2, 4, 8, 16)
COUNTED = report_rdma.KNOWN | report_serving.KNOWN  # CPU rows, which also decide claims


def per_size(found, text=num):
    """195 / 213 / 214 / 208, or '' if there are no values."""
    return " / ".join(text(found.get(s)) for s in SIZES) if any(s in found for s in SIZES) else ""


def cycles(rows, num_bytes, on_chip):
    found = [
        c
        for c in views.collectives(rows, "reduce")
        if c.num_bytes == num_bytes and c.on_chip == on_chip and c.cycles
    ]
    return {
        s: round(min(c.cycles for c in found if c.size == s))
        for s in SIZES
        if any(c.size == s for c in found)
    }


def on_cluster(rows):
    yield (
        "DSMEM load, cluster 2 / 4 / 8 / 16",
        per_size(views.latency(rows).peers),
        "cycles",
        "source: 190 at 2 (H100)",
    )
    found = views.bandwidth(rows)
    best = {
        s: max(v for v in (found.get(n, {}).get(s) for _, n in views.UNICAST) if v)
        for s in SIZES
        if any(found.get(n, {}).get(s) for _, n in views.UNICAST)
    }
    yield "DSMEM bandwidth of all SMs, cluster 2 / 4 / 8 / 16", per_size(best, tbps), "TB/s", "source: 2.90 at 16 (H100)"
    for num_bytes, name in ((256, "256 B"), (16384, "16 KiB")):
        off = per_size(cycles(rows, num_bytes, False))
        yield (
            f"all-reduce of {name} in a kernel, cluster 2 / 4 / 8 / 16",
            per_size(cycles(rows, num_bytes, True)),
            "cycles",
            f"through global memory: {off}" if off else "",
        )


ROWS = (
    ("rmsnorm, 128 x 4096", "rmsnorm", (), {"rows": 128, "dim": 4096}, lambda r: "residual" not in r.words),
    ("silu-mul, 128 x (2 x 14336)", "silu_mul", (), {"rows": 128, "dim": 14336}, None),
    ("rope, 128 tokens, 32/8 heads", "rope", (), {"rows": 128, "heads": 32, "heads2": 8}, None),
    (
        "sampling, top-k and top-p, batch 64",
        "sample",
        (),
        {"rows": 64, "vocab": 128256, "topk": 50, "topp": 90},
        None,
    ),
    ("product 1 x 14336 x 4096, bf16", "gemm", ("bf16",), {"m": 1, "n": 14336, "k": 4096}, None),
    ("product 8192^3, bf16", "gemm", ("bf16",), {"m": 8192, "n": 8192, "k": 8192}, None),
    (
        "paged decode, 32/8 heads, batch 1, 4096 keys",
        "attn_paged",
        ("decode",),
        {"h": 32, "h2": 8, "b": 1, "kv": 4096},
        lambda r: "d" not in r.n,
    ),
    (
        "paged decode, 32/8 heads, batch 64, 4096 keys",
        "attn_paged",
        ("decode",),
        {"h": 32, "h2": 8, "b": 64, "kv": 4096},
        lambda r: "d" not in r.n,
    ),
    (
        "paged prefill, causal, 32/8 heads, 4 x 4096",
        "attn_paged",
        ("prefill", "causal"),
        {"h": 32, "h2": 8, "b": 4, "s": 4096},
        lambda r: "d" not in r.n,
    ),
) + tuple(
    (f"attention block, {what}", op, (), {}, lambda r, case=case: r.case == case)
    for what, op, case in (
        ("Llama-2-7B, batch 1, 1024 keys", "cluster_attn", "llama2_7b_b1_kv1024"),
        ("Llama-2-7B, batch 1, 16384 keys", "cluster_attn", "llama2_7b_b1_kv16384"),
        ("Llama-2-7B, batch 16, 1024 keys", "cluster_attn", "llama2_7b_b16_kv1024"),
        ("Llama-3-8B, batch 1, 1024 keys", "cluster_attn", "llama3_8b_b1_kv1024"),
        ("DeepSeek-V2-Lite, batch 1, 1024 keys", "cluster_mla", "dsv2lite_b1_kv1024"),
    )
)


def operations(rows, ceilings):
    for what, op, words, numbers, where in ROWS:
        record = rows.fastest(op, *words, impl="cuda", where=where, **numbers)
        if not record:
            yield what, "", "", ""
            continue
        share, which = ceilings.share(record)
        peer = views.fastest_peer({r.impl: r for r in rows.find(op) if r.case == record.case})
        library = report_peers.us(record)
        against = (
            f"cuBLASLt in the same run: {us(peer.ns)} µs"
            if peer and peer.impl == "peers"
            else (
                f"{'separate kernels' if peer.impl == 'unfused' else peer.impl} in the same run: {us(peer.ns)} µs"
                if peer
                else f"{report_peers.LIBRARY}: {num(library)} µs" if library else ""
            )
        )
        text = us(record.ns)
        yield what, text, f"µs{f', {percent(share)} of the {which} ceiling' if share else ''}", against


def engine(rows, ceilings):
    of_bench = {"layer", "graph", "persistent"}
    fused = [r for r in rows.find("decode_step", impl="cuda", b=1) if r.ns and not of_bench & set(r.words)]
    lists = {r.case: r.ns for t in ("unfused", "cuda:unfused") for r in rows.find("decode_step", impl=t) if r.ns}
    known = {r.case for r in fused}
    for r in fused + [r for r in rows.find("generate", impl="cuda", b=1) if r.ns and r.case not in known]:
        share, other = views.stream_share(r, ceilings), lists.get(r.case) if r.case in known else None
        yield (
            f"`cairn generate`, {r.case}",
            f"{r.ns / 1e6:.2f}",
            f"ms per token{f', {percent(share)} of the read stream' if share else ''}",
            f"as a list of operations: {other / 1e6:.2f} ms" if other else "",
        )


def served(rows):
    for t in report_serving.targets(rows):
        if t.reached is not None:
            yield t.what, t.here, "", f"{t.verdict()[1]}: {t.wanted}"


def table(rows, source):
    """The text between the markers."""
    judged = rows.keep(lambda r: r.on_gpu or r.op in COUNTED)
    rows = rows.keep(lambda r: r.on_gpu)
    ceilings, machine = Ceilings(rows), Machine(rows)
    read = ceilings.gbps()
    lines = [("read stream", tbps(read) if read else "", "TB/s", "")]
    lines += list(on_cluster(rows)) + list(operations(rows, ceilings)) + list(engine(rows, ceilings)) + list(served(rows))
    text = [
        (
            f"{machine.name()}, driver {', '.join(machine.drivers) or DASH}, SM clock {machine.clock()},"
            f" {len(rows)} rows of `{source}`. {report_peers.LIBRARY}: measured on another H200, not in this"
            " run."
        ),
        "",
        "| figure | measured | compared with |",
        "|---|---|---|",
    ]
    text += [
        f"| {cell(what)} | {cell(value)} {cell(unit)} | {cell(beside)} |"
        for what, value, unit, beside in lines
        if value
    ]
    claims = report_claims.claims(judged, ceilings)
    text += [
        "",
        "Claims of the sources (rules and figures in the report): "
        + ", ".join(f"{c.id} {c.verdict()[1]}" for c in claims)
        + ".",
    ]
    return "\n".join(text)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def replaced(readme, text):
    """The README with a new text between its markers; None if the markers are missing or in the wrong order."""
    begin, end = readme.find(BEGIN), readme.find(END)
    if begin < 0 or end < begin:
        return None
    return f"{readme[:begin]}{BEGIN}\n{text}\n{readme[end:]}"


def main(argv=None):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    parser.add_argument("--recorded", default=os.path.join(root, "reports/h200.jsonl"), metavar="FILE")
    parser.add_argument("--readme", default=os.path.join(root, "README.md"), metavar="FILE")
    args = parser.parse_args(argv)
    try:
        rows = load(args.recorded)
        with open(args.readme, encoding="utf-8") as file:
            before = file.read()
        text = table(rows, os.path.relpath(args.recorded, os.path.dirname(args.readme) or "."))
    except BadRecords as error:
        print(f"readme_table: {error}", file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError) as error:
        print(f"readme_table: {args.readme}: {error}", file=sys.stderr)
        return 2
    after = replaced(before, text)
    if after is None:
        print(f"readme_table: {args.readme}: no {BEGIN} ... {END}", file=sys.stderr)
        return 2
    if args.check:
        if after != before:
            print(
                f"readme_table: {args.readme} is out of date: run python3 reports/readme_table.py",
                file=sys.stderr,
            )
        return int(after != before)
    if after != before:
        with open(args.readme, "w", encoding="utf-8", newline="\n") as file:
            file.write(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
