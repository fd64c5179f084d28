# SPDX-License-Identifier: Apache-2.0
"""Section of the report: energy of a bit read, of a FLOP, of a token (reports/README.md, "Energy").

A row's joules are of one call while the device repeats it, and its time then is joules / watts: on a card at its power
limit the clock is lower, and the time longer, than in the timed samples.  All figures are of the whole card.
"""

from base.page import DASH, code, num
from base.records import is_number

LOAD = [">W", ">SM MHz", ">at the power limit"]
# the operations whose rows give the energy of a FLOP: what they multiply
PRODUCTS = (
    ("gemm", "16-bit products"),
    ("gemm_fp8w", "products with 8-bit weights"),
    ("attn_dense", "attention, 16 bits"),
    ("attn_fp8", "attention, 8 bits"),
    ("attn_bwd", "gradients of attention, 16 bits"),
)
TABLES = ("cuda", "peers")


def measured(record):
    """Whether the energy of this row is known."""
    return all(is_number(record.get(key)) and record.get(key) > 0 for key in ("joules", "watts"))


def seconds(record):
    """Time of one call under the load that was measured."""
    return record.need("joules") / record.need("watts")


def pj_per_bit(record):
    return record.need("joules") / (8 * record.need("bytes")) * 1e12


def pj_per_flop(record):
    return record.need("joules") / record.need("flops") * 1e12


def mj_per_token(record):
    """The energy of a token: from rows of the engine, or from whole steps of `cairn bench`, which give each
    request a token. None for other rows."""
    if record.number("mj_per_token"):
        return record.number("mj_per_token")
    if record.op == "decode_step" and record.n.get("b") and "layer" not in record.case:
        return record.need("joules") / record.n["b"] * 1e3
    return None


def load(record):
    """The cells of LOAD."""
    capped = record.number("capped_pct")
    return [
        num(round(record.need("watts"))),
        num(record.number("sm_mhz") or None),
        DASH if capped is None else f"{capped:.0f}%",
    ]


def reading(page, rows):
    found = [r for r in rows.find("stream", "read", impl="cuda") if measured(r) and r.number("bytes")]
    if not found:
        page.missing("energy of a bit read", ["stream read_1g"])
        return
    page.table(
        "Reads: energy of the whole card for one bit. Reads that fit into the L2 are repeated over copies, so that each one"
        " comes from memory.",
        ["case", ">TB/s under load", *LOAD, ">pJ per bit"],
        [
            [code(r.case), num(r.need("bytes") / seconds(r) * 1e-12), *load(r), num(pj_per_bit(r))]
            for r in sorted(found, key=lambda r: r.need("bytes"))
        ],
    )


def products(page, rows):
    table = []
    for op, name in PRODUCTS:
        best = {}
        for r in rows.find(op):
            if r.impl not in TABLES or not measured(r) or not r.number("flops") or not r.computes():
                continue
            key = (r.impl, r.dtype or "")
            if key not in best or pj_per_flop(r) < pj_per_flop(best[key]):
                best[key] = r
        if best:
            table.append([name])
        for r in best.values():
            rate = r.need("flops") / seconds(r) * 1e-12
            table.append([code(r.case), r.impl, num(rate), *load(r), num(pj_per_flop(r))])
    if not table:
        page.missing("energy of a FLOP", ["gemm m8192_n8192_k8192_bf16", "attn_dense", "attn_fp8"])
        return
    page.table(
        "Arithmetic: energy of the whole card for one FLOP. For each operation, element type and table the row with the"
        " least.",
        ["case", "table", ">TFLOP/s under load", *LOAD, ">pJ per FLOP"],
        table,
    )


def tokens(page, rows):
    kinds = (
        ("decode_step", "decoding steps"),
        ("generate", "whole answers, with their prompts"),
        ("throughput", "the full engine: tokens of prompts and answers (decode_256: of answers)"),
        ("serve", "the server: tokens of prompts and answers"),
    )
    table = []
    for op, name in kinds:
        found = [r for r in rows.find(op) if mj_known(r)]
        if found:
            table.append([name])
        found.sort(key=lambda r: (r.case.partition("_b")[0], r.n.get("b", 0), r.n.get("kv", 0), r.impl))
        for r in found:
            cells = load(r) if r.number("watts") else [DASH] * len(LOAD)
            table.append([code(r.case), r.impl, num(r.n.get("b")), *cells, num(mj_per_token(r))])
    if not table:
        page.missing("energy of a token", ["decode_step", "generate", "throughput"])
        return
    page.table(
        "Tokens: energy of the whole card for one.",
        ["case", "table", ">batch", *LOAD, ">mJ per token"],
        table,
    )


def mj_known(record):
    return bool(record.number("joules")) and mj_per_token(record) is not None


def section(page, ctx):
    page.section("Energy", "energy")
    if not any(r.on_gpu and r.number("joules") for r in ctx.rows):
        reasons = sorted({r.get("no_energy") for r in ctx.rows if r.get("no_energy")})
        page.missing(
            "energy of any row",
            why=": " + "; ".join(map(str, reasons)) + "." if reasons else ": the rows are older than its measurement.",
        )
        return
    page.para(
        "After the timed samples of a row, the device repeats the row's calls without a pause. The driver's energy counter"
        " gives their mean power, and all rates here are those under this load. The column on the power limit has the share"
        " of the time in which the limit held the SM clock down; there, a call takes its energy divided by the limit. Idle"
        " power is included."
    )
    reading(page, ctx.rows)
    products(page, ctx.rows)
    tokens(page, ctx.rows)
