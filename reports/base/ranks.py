# SPDX-License-Identifier: Apache-2.0
"""Rows of several GPUs of one host, by what was run and the number of ranks; for the section and claims AT-8 to AT-10."""

COLLECTIVES = ("all_reduce_norm", "all_to_all", "send_recv")
WAYS = {"heads": "head exchange", "ring": "ring", "tensors": "tensor parallel", "both": "tensors, and rows of prompts"}
KNOWN = {
    "comm", "tp_decode", "tp_prefill", "tp_offline", "cp_prefill", "cp_decode", "ring_attention", "pp_prefill",
    "simulated_ranks", "disagg", "disagg_layer", "disagg_order", "disagg_pull",
}  # fmt: skip
COUNTED = {"pp_prefill"}  # simulated rows, which any machine counts


def kilo(record):
    return round(record.need("prompt_tokens") / 1024)


def collectives(rows):
    """{(operation, ranks): {impl: {bytes: ns}}} of ranks that have a GPU each."""
    found = {}
    for r in rows.find("comm", where=lambda r: r.ns and not r.case.startswith("one_gpu")):
        op = next((o for o in COLLECTIVES if o in r.case), None)
        ranks = r.number("ranks") or r.number("gpus")
        if op and ranks:
            found.setdefault((op, int(ranks)), {}).setdefault(r.impl, {})[int(r.need("bytes"))] = r.ns
    return found


def both(by_impl):
    """[(bytes, our ns, NCCL's ns)] of the sizes that both have."""
    ours, other = by_impl.get("cuda", {}), by_impl.get("nccl", {})
    return [(size, ours[size], other[size]) for size in sorted(ours) if size in other]


def steps(rows):
    """{(shape, batch, keys): {ranks: ns}}"""
    found = {}
    for r in rows.find("tp_decode", where=lambda r: r.ns):
        key = (r.case.partition("_b")[0], int(r.need("batch")), int(r.need("context")))
        found.setdefault(key, {})[int(r.need("ranks"))] = r.ns
    return found


def prompts(rows):
    """{shape: {ranks: ms}} of tensor parallelism"""
    found = {}
    for r in rows.find("tp_prefill"):
        found.setdefault(r.case.rpartition("_n")[0].rpartition("_")[0], {})[int(r.need("ranks"))] = r.need("first_ms")
    return found


def offline(rows):
    """{ranks: tokens per second}"""
    return {int(r.need("ranks")): r.need("tokens_per_s") for r in rows.find("tp_offline")}


def long_prompts(rows):
    """{(thousands of tokens, way): {ranks: ms}}; one rank is in all ways."""
    one, found = {}, {}
    for r in rows.find("cp_prefill"):
        way = next((w for w in WAYS if w in r.words), None)
        if r.need("ranks") == 1:
            one[kilo(r)] = r.need("first_ms")
        elif way:
            found.setdefault((kilo(r), way), {})[int(r.need("ranks"))] = r.need("first_ms")
            if r.number("one_ms"):
                one.setdefault(kilo(r), r.number("one_ms"))
    for (tokens, way), times in found.items():
        if tokens in one:
            found[tokens, way] = {1: one[tokens], **times}
    return found


def rings(rows):
    """{ranks: {thousands of tokens: record}}"""
    found = {}
    for r in rows.find("ring_attention"):
        found.setdefault(int(r.need("ranks")), {})[kilo(r)] = r
    return found


def ideal_share(record):
    return record.need("one_ms") / record.need("zigzag_ms") / record.need("ranks")


def pipelines(rows):
    """{thousands of tokens: {stages: (ms, rows of the first chunk)}}, the fastest chunk of each; measured ones only"""
    found = {}
    for r in rows.find("pp_prefill", where=lambda r: r.number("first_token_ns")):
        here, stages = found.setdefault(kilo(r), {}), int(r.need("stages"))
        here[stages] = min(here.get(stages, (float("inf"), 0)), (r.need("first_token_ns") / 1e6, int(r.need("chunk_rows"))))
    return found


def speedups(times):
    """[(ranks, times as fast as one rank)] of {ranks: time}; [] without the time of one rank."""
    return [(n, times[1] / times[n]) for n in sorted(times)] if 1 in times else []
