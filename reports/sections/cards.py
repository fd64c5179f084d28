# SPDX-License-Identifier: Apache-2.0
"""Recordings of cards, and the figures by which the README and the report show cards side by side.

A recording is a file of records in reports/, and all its GPU rows come from one card; a recording of an H200 is shown
first.  Cards are the same if the driver gives them the same name.
"""

import glob
import os
from dataclasses import dataclass

from base import disagg, ranks, views
from claims import attention_claims
from sections import disagg_section, overlap_section, rdma_section, serving_section
from base.page import code, join, num, percent, tbps, us
from base.records import BadRecords, Ceilings, Rows, cards, load

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIRST = "NVIDIA H200"
# CPU rows that do not belong to an operation table
COUNTED = rdma_section.KNOWN | serving_section.KNOWN | attention_claims.COUNTED | ranks.COUNTED | disagg.COUNTED


class Recording:
    """name: the file as shown on the page; rows: all its records; gpu: those of the card; card: its name."""

    def __init__(self, name, rows):
        self.name, self.rows = name, rows
        self.gpu = rows.keep(lambda r: r.on_gpu)
        self.card = cards(self.gpu)


def default_paths():
    return sorted(glob.glob(os.path.join(FOLDER, "*.jsonl")))


def shown_name(path):
    """The path from the root of the repository if the file lies in it."""
    root = os.path.dirname(FOLDER)
    full = os.path.abspath(path)
    return os.path.relpath(full, root) if full.startswith(root + os.sep) else path


def recordings(paths):
    """The recordings in these files, that of an H200 first.  BadRecords if one has rows of two cards, or two are of one."""
    found = []
    for path in paths:
        new = Recording(shown_name(path), load(path))
        names = sorted({r.get("gpu") for r in new.gpu if r.get("gpu")})
        if len(names) > 1:
            raise BadRecords(f"{path}: rows of several cards: {', '.join(names)}; a recording has the rows of one")
        twin = next((r for r in found if r.card and r.card == new.card), None)
        if twin:
            raise BadRecords(f"{path}: {twin.name} is already a recording of the {twin.card}")
        found.append(new)
    return sorted(found, key=lambda r: (not r.card.startswith(FIRST), r.card, r.name))


def counted(sources):
    """CPU rows of the sections on attention, RDMA, serving and several GPUs: for each op those of the first source (Rows) that has any."""
    found = []
    for op in sorted(COUNTED):
        for rows in sources:
            here = [r for r in rows if r.op == op and not r.on_gpu and r.get("ok") is not False]
            if here:
                found += here
                break
    return found


def derived(rows):
    """Rows that a host computed from times of the recording's card: simulations and plans."""
    return [*disagg_section.simulated(rows), *overlap_section.searched(rows)]


def judged(one, others):
    """The rows that decide the claims on the card of a recording: its own, those derived from them, and CPU rows of others."""
    return Rows([*one.gpu, *derived(one.rows), *counted([one.rows, *(r.rows for r in others if r is not one)])])


# ---------------------------------------------------------------- figures

SIZES = (2, 4, 8, 16)


@dataclass
class Figure:
    what: str
    value: str  # with its unit; '' if it was not measured
    beside: str = ""  # what it is compared with, measured on the same card


def per_size(found, text=num):
    """195 / 213 / 214 / 208, or '' if there are no values."""
    return " / ".join(text(found.get(s)) for s in SIZES) if any(s in found for s in SIZES) else ""


def with_unit(value, unit):
    return f"{value} {unit}" if value else ""


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


def memory(ceilings):
    read, peak = ceilings.gbps(), ceilings.datasheet()
    share = f", {percent(read / peak)} of the datasheet's {tbps(peak)}" if read and peak else ""
    yield Figure("read stream", f"{tbps(read)} TB/s{share}" if read else "")


def on_cluster(rows):
    yield Figure(
        "DSMEM load, cluster 2 / 4 / 8 / 16",
        with_unit(per_size(views.latency(rows).peers), "cycles"),
        "CF: 190 at 2 (H100)",
    )
    found = views.bandwidth(rows)
    best = {
        s: max(v for v in (found.get(n, {}).get(s) for _, n in views.UNICAST) if v)
        for s in SIZES
        if any(found.get(n, {}).get(s) for _, n in views.UNICAST)
    }
    yield Figure(
        "DSMEM bandwidth of all SMs, cluster 2 / 4 / 8 / 16",
        with_unit(per_size(best, tbps), "TB/s"),
        "CF: 2.90 at 16 (H100)",
    )
    for num_bytes, name in ((256, "256 B"), (16384, "16 KiB")):
        off = per_size(cycles(rows, num_bytes, False))
        yield Figure(
            f"all-reduce of {name} in a kernel, cluster 2 / 4 / 8 / 16",
            with_unit(per_size(cycles(rows, num_bytes, True)), "cycles"),
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
        "product 8192 x 28672 x 4096, e4m3 with a scale per block",
        "gemm_fp8",
        (),
        {},
        lambda r: r.case == "m8192_n28672_k4096_bf16_blocks",
    ),
    (
        "paged decode, 32/8 heads, batch 1, 4096 keys",
        "attn_paged",
        ("decode",),
        {"h": 32, "h2": 8, "b": 1, "kv": 4096},
        lambda r: "d" not in r.n and r.dtype != "fp8",
    ),
    (
        "paged decode, 32/8 heads, batch 64, 4096 keys",
        "attn_paged",
        ("decode",),
        {"h": 32, "h2": 8, "b": 64, "kv": 4096},
        lambda r: "d" not in r.n and r.dtype != "fp8",
    ),
    (
        "paged decode, 32/8 heads, 16 requests of 303 to 4846 keys",
        "attn_paged",
        (),
        {},
        lambda r: r.case == "known_zipf_h32_8_b16_bf16",
    ),
    (
        "paged prefill, causal, 32/8 heads, 4 x 4096",
        "attn_paged",
        ("prefill", "causal"),
        {"h": 32, "h2": 8, "b": 4, "s": 4096},
        lambda r: "d" not in r.n and r.dtype != "fp8",
    ),
) + tuple(
    (f"{what}, 16 heads of 128, {of}", op, (), {}, lambda r, case=case: r.case == case)
    for what, op in (("attention", "attn_dense"), ("gradients of attention", "attn_bwd"))
    for of, case in (
        ("causal, 4 x 4096", "h16_d128_b4_s4096_causal_bf16"),
        ("causal, 16384", "h16_d128_b1_s16384_causal_bf16"),
        ("full, 16384", "h16_d128_b1_s16384_bf16"),
    )
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


def against(record, rows):
    """The fastest other table of a row; it is said if it was recorded in another run."""
    peer = views.fastest_peer(views.table_of(rows, record))
    if not peer:
        return ""
    return f"{views.peer_name(peer)}: {us(peer.ns)} µs" + (", in another run" if views.other_run(record, peer) else "")


def operations(rows, ceilings):
    for what, op, words, numbers, where in ROWS:
        record = rows.fastest(op, *words, impl="cuda", where=where, **numbers)
        if not record:
            yield Figure(what, "")
            continue
        share, which = ceilings.share(record)
        reached = f", {percent(share)} of the {which} ceiling" if share else ""
        yield Figure(what, f"{us(record.ns)} µs{reached}", against(record, rows))


BETWEEN = (("16 KB", 2), ("64 KB", 8), ("256 KB", 32), ("1 MB", 128), ("4 MB", 512), ("32 MB", 4096))


def between_gpus(rows):
    """Rows of several GPUs of one host: the collective of decoding, and a step over ranks."""
    found = [rows.by_key.get(("comm", f"all_reduce_norm_rows{n}_dim4096_bf16", "cuda")) for _, n in BETWEEN]
    nccl = [rows.by_key.get(("comm", f"all_reduce_norm_rows{n}_dim4096_bf16", "nccl")) for _, n in BETWEEN]
    here = " / ".join(us(r.ns) for r in found if r and r.ns)
    other = " / ".join(us(r.ns) for r in nccl if r and r.ns)
    yield Figure(
        f"all-reduce with residual and norm, 2 GPUs, {' / '.join(size for size, _ in BETWEEN)}",
        f"{here} µs" if all(found) else "",
        f"NCCL and a norm: {other} µs" if all(nccl) else "",
    )
    for what, op, case, field, unit, ways in OVER_TWO:
        one, *two = (over(rows, op, case, field, way) for way in ("_n1", *ways))
        yield Figure(
            what,
            f"{' / '.join(unit.format(t) for t in two)} ms" if all(two) else "",
            f"one GPU: {unit.format(one)} ms" if one else "",
        )


OVER_TWO = (
    (
        "whole step over 2 GPUs, batch 1, Llama-3-8B, 1024 keys",
        "tp_decode", "llama3_8b_b1_kv1024", "median_ns", "{:.2f}", ("_n2",),
    ),
    (
        "first token over 2 GPUs, Llama-3-8B, 8192 tokens, by tensors",
        "tp_prefill", "llama3_8b_8k", "first_ms", "{:.0f}", ("_n2",),
    ),
    (
        "first token over 2 GPUs, Llama-3.1-8B, 32,768 tokens, by rows: head exchange / ring",
        "cp_prefill", "llama31_8b_32k", "first_ms", "{:.0f}", ("_n2_heads", "_n2_ring"),
    ),
    (
        "first token over 2 GPUs, Llama-3-8B, 131,072 tokens, by layers",
        "pp_prefill", "llama3_8b_128k", "first_token_ns", "{:.0f}", ("_n2",),
    ),
)  # fmt: skip


def over(rows, op, case, field, way):
    """The time of a case over several GPUs in ms. If rows differ only in the size of chunks, that of the
    fastest row; None if there is no row."""
    scale = 1e-6 if field.endswith("_ns") else 1
    exact = rows.by_key.get((op, case + way, "cuda"))
    found = [exact] if exact else rows.find(op, impl="cuda", where=lambda r: r.case.startswith(f"{case}{way}_chunk"))
    return min((r.need(field) * scale for r in found), default=None)


STEPS = (
    ("Llama-2-7B, 256 keys", "llama2_7b_b1_kv256"),
    ("Llama-2-7B, 1024 keys", "llama2_7b_b1_kv1024"),
    ("Llama-2-7B, 2048 keys", "llama2_7b_b1_kv2048"),
    ("Llama-3-8B, 1024 keys", "llama3_8b_b1_kv1024"),
    ("Llama-3-8B, 4096 keys", "llama3_8b_b1_kv4096"),
    ("Llama-3.2-1B, 1024 keys", "llama32_1b_b1_kv1024"),
    ("Qwen2-7B, 1024 keys", "qwen2_7b_b1_kv1024"),
    ("DeepSeek-V2-Lite, 1024 keys", "dsv2lite_b1_kv1024"),
)


def steps(rows, ceilings):
    """Whole steps of the engine: rows of `cairn generate`."""
    for what, case in STEPS:
        name = f"whole step, batch 1, {what}"
        fused = rows.by_key.get(("decode_step", case, "cuda"))
        record = fused if fused and fused.ns else rows.by_key.get(("generate", case, "cuda"))
        if not record or not record.ns:
            yield Figure(name, "")
            continue
        lists = [rows.by_key.get(("decode_step", case, t)) for t in ("cuda:unfused", "unfused")]
        other = next((r.ns for r in lists if r and r.ns), None) if record is fused else None
        share = views.stream_share(record, ceilings)
        yield Figure(
            name,
            f"{record.ns / 1e6:.2f} ms{f', {percent(share)} of the read ceiling' if share else ''}",
            f"separate kernels: {other / 1e6:.2f} ms" if other else "",
        )


def served(rows):
    for t in serving_section.targets(rows):
        here = f"{t.here} ({t.verdict()[1]})" if t.reached is not None else ""
        yield Figure(t.what, here, f"target: {t.wanted}")


def figures(rows):
    """All figures of one card, measured or not, always in the same order."""
    ceilings = Ceilings(rows)
    return [
        *memory(ceilings),
        *on_cluster(rows),
        *operations(rows, ceilings),
        *steps(rows, ceilings),
        *between_gpus(rows),
        *served(rows),
    ]


def section(page, columns):
    """columns: [(card, where its rows come from, Rows)], two or more."""
    page.section("Cards side by side", "cards")
    page.para(
        "The same figures on each card. A share is of the ceiling that the same card reached in the same run, and"
        " what is measured on one card is no verdict on another."
    )
    lists = [figures(rows) for _, _, rows in columns]
    page.table(
        join(
            [
                "The cards of this table: ",
                join([join([card, ", ", source]) for card, source, _ in columns], "; "),
                ".",
            ]
        ),
        ["figure"] + [card for card, _, _ in columns],
        [[line[0].what] + [f.value or None for f in line] for line in zip(*lists) if any(f.value for f in line)],
        of="",
    )


def source_of(recording):
    return join(["recorded in ", code(recording.name)])
