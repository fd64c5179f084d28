# SPDX-License-Identifier: Apache-2.0
"""Overlap inside one device: claims NF-1 to NF-8 and NF-12 (NF-9 to NF-11 are with the serving engine).

Rows: op interference (`cairn bench serving.interference`), search (`cairn search`), nano_ablation (`cairn search
--measure`), throughput and serve.  A pair's r and p are the rates of a product and of attention while both run, as
shares of what each reaches alone.
"""

from base.page import DASH, fixed, num
from base.verdicts import Claim

NANOFLOW = "Zhu et al. 2024, NanoFlow (arXiv 2408.12757)"
PARAMETERS, KV_BYTES = 8.03e9, 131072  # of Llama-3-8B; bytes of keys and values of a token in 16 bits
MEMORY = {"NVIDIA H200": 141e9, "NVIDIA H100 80GB HBM3": 80e9}  # bytes
PROMPT, ANSWER = 1024, 512  # tokens of a request of the throughput rows
FULL_SMS = 132
SEQUENTIAL, SPLIT = "sequential", "split"  # ways of nano_ablation


def engine(rows, suffix=""):
    """The row of the full engine in 16 bits, or one of its forms."""
    return rows.by_key.get(("throughput", f"llama3_8b_1024_512{suffix}", "cuda"))


def alone(rows):
    """Products of at least 1024 rows, and attention of decoding requests, on all SMs."""
    return [
        r
        for r in rows.find("interference", impl="cuda")
        if r.get("how") == "alone"
        and r.number("sms_a") == FULL_SMS
        and r.number("gbps_a")
        and not r.case.startswith("pre_")
        and (r.case.startswith("dec_") or r.n.get("m", 0) >= 1024)
    ]


def pairs(rows):
    return [r for r in rows.find("interference", impl="cuda") if r.number("r") and r.number("p")]


def model_share(record, ceilings, peak):
    """The time that the cost model gives an operation, as a share of its measured time."""
    return max((record.number("tflops_a") or 0) / peak, record.number("gbps_a") / ceilings.gbps())


def ablations(rows):
    """{(rows, decode): {how: record}}"""
    found = {}
    for r in rows.find("nano_ablation", impl="cuda"):
        if r.number("ms"):
            found.setdefault((r.get("rows"), r.get("decode")), {})[r.get("how")] = r
    return found


def nf_1(rows, ceilings):
    claim = Claim(
        "NF-1",
        "Serving with as many requests as fit is bound by arithmetic",
        f"{NANOFLOW}, section 3.2, figures 2 and 3; A100",
        "Computed: the time to read the whole memory once, and the time to multiply the rows of a step of all requests"
        " that fit (Llama-3-8B in 16 bits, 1024 tokens in and 512 out), by this machine's measured rates.",
    )
    row, result = engine(rows), None
    memory = MEMORY.get(row.get("gpu")) if row else None
    if memory and ceilings.gbps() and row.number("gemm_tflops"):
        fits = (memory - 2 * PARAMETERS) / (KV_BYTES * (PROMPT + ANSWER / 2))
        step = fits * (PROMPT + ANSWER) / ANSWER
        compute = 2 * PARAMETERS * step / (row.number("gemm_tflops") * 1e12)
        read = memory / (ceilings.gbps() * 1e9)
        text = f"{fixed(compute / read, 2)} times ({fixed(1e3 * compute, 1)} ms against {fixed(1e3 * read, 1)} ms, {num(round(fits))} requests)"
        result = (text, compute > read, text)
    claim.part("time of arithmetic over time of memory", "above 1", "above 1", "throughput llama3_8b_1024_512, stream read_*", result)
    return claim


def nf_2(rows, ceilings):
    claim = Claim(
        "NF-2",
        "The cost model agrees with measured times of operations",
        f"{NANOFLOW}, table 2; 8 A100",
        "The model's time of an operation is its FLOPs over the best rate of a product, or its bytes over the read stream,"
        " whichever is longer. Measured: each operation alone on all SMs, with the norm, rotation or activation beside it.",
    )
    row, found = engine(rows), alone(rows)
    peak = row.number("gemm_tflops") if row else None
    for what, holds in (
        ("products of 1024 rows and more", lambda r: not r.case.startswith("dec_")),
        ("attention of decoding requests", lambda r: r.case.startswith("dec_")),
    ):
        result = None
        chosen = [r for r in found if holds(r)]
        if chosen and peak and ceilings.gbps():
            share, worst = min((model_share(r, ceilings, peak), r.case) for r in chosen)
            text = f"at most {fixed(1 / share, 2)} times the model ({worst})"
            result = (text, share >= 0.8, text)
        claim.part(what, "agrees", "at most 1.25 times the model's time", "interference alone", result)
    return claim


def nf_3(rows):
    claim = Claim(
        "NF-3",
        "Optimal throughput is compute / (2 P), whatever the lengths and the memory",
        f"{NANOFLOW}, formula 5; 1857 tokens/s a GPU for 70B on A100",
        "The rate of the table's fastest product in the same run, over two FLOP for each parameter.",
    )
    found = [r for r in rows.find("throughput", impl="cuda") if r.number("optimal_pct")]
    best = max(found, key=lambda r: r.number("optimal_pct"), default=None)
    result = None
    if best:
        text = f"{num(best.number('optimal_per_s'))} tokens/s; at most {fixed(best.number('optimal_pct'), 1)}% of it ({best.case})"
        result = (text, best.number("optimal_pct") <= 100, text)
    claim.part("a bound", "an upper bound", "no row above it", "throughput *: optimal_pct", result)
    return claim


def nf_4(rows):
    claim = Claim(
        "NF-4",
        "A product that gives up a little lets attention run at much of its rate",
        f"{NANOFLOW}, figure 5 and table 3; A100",
        "Each product beside attention of decoding requests, in two streams, with priority, or on SMs of their own: the"
        " best rate of attention among the pairs in which the product keeps this share of its own.",
    )
    found = pairs(rows)
    for kept, source in ((0.8, 0.3), (0.6, 0.8)):
        chosen = [r for r in found if r.number("r") >= kept]
        result = None
        if found:
            best = max(chosen, key=lambda r: r.number("p"), default=None)
            p = best.number("p") if best else 0
            text = f"{fixed(p, 2)} ({best.case}, {best.get('how')})" if best else "no pair"
            result = (text, p >= source, text)
        claim.part(f"the product keeps {kept:g}", f"attention has {source:g}", f"at least {source:g}", "interference pairs: r, p", result)
    result = None
    if found:
        best = max(found, key=lambda r: r.number("r") + r.number("p"))
        total = best.number("r") + best.number("p")
        load = f", at {num(round(best.number('watts')))} W" if best.number("watts") else ""
        text = f"{fixed(total, 2)} ({best.case}, {best.get('how')}{load})"
        result = (text, total > 1.05, text)
    claim.part("the best pair, r + p", "above 1", "above 1.05", "interference pairs: r, p", result)
    return claim


def nf_5(rows):
    claim = Claim(
        "NF-5",
        "The search ends within about ten minutes",
        f"{NANOFLOW}, section 4.1",
        "The time of the profile on this GPU and of both integer programs (CBC, two cores) for all passes of the file.",
    )
    found = [r for r in rows.find("search") if r.number("search_s") is not None and r.number("profile_s")]
    result = None
    if found:
        total = max(r.number("profile_s") for r in found) + sum(r.number("search_s") for r in found)
        text = f"{fixed(total / 60, 1)} minutes for {len(found)} passes"
        result = (text, total <= 600, text)
    claim.part("profile and search", "about 10 minutes", "at most 10 minutes", "search *", result)
    return claim


def share(record):
    return record.number("optimal_pct") if record else None


def nf_6(rows):
    claim = Claim(
        "NF-6",
        "Offline throughput is 50% to 72% of the optimum, at best 68.5% in the text",
        f"{NANOFLOW}, figures 7 and 11; A100",
        "The full engine with the shape of Llama-3-8B, 1024 tokens in and 512 out, on one GPU.",
    )
    for what, suffix in (("16 bits", ""), ("keys and values in 8 bits", "_kv_fp8")):
        row = engine(rows, suffix)
        result = None
        if share(row):
            text = f"{fixed(share(row), 1)}% at {num(round(row.number('watts') or 0))} W, {fixed(row.number('mj_per_token'), 1)} mJ a token"
            result = (text, share(row) >= 50, text)
        claim.part(what, "50% to 72%", "at least 50%", f"throughput llama3_8b_1024_512{suffix}", result)
    return claim


def nf_7(rows):
    claim = Claim(
        "NF-7",
        "Near saturation the 99th percentile of latency is 1.07 times the mean",
        f"{NANOFLOW}, figure 8; A100",
        "Requests of Poisson arrivals at 80% of the rate at which the server saturates.",
    )
    row = next(iter(rows.find("serve", where=lambda r: r.case == "llama3_8b_online80")), None)
    found = row and row.number("p99_over_mean")
    text = f"{fixed(found, 2)} times" if found else ""
    claim.part("p99 over mean", "1.07", "at most 1.07", "serve llama3_8b_online80", (text, found <= 1.07, text) if found else None)
    return claim


def nf_8(rows):
    claim = Claim(
        "NF-8",
        "Splitting alone costs 13.2%; overlap gains 1.07 to 1.17 times",
        f"{NANOFLOW}, figure 9; 8 A100",
        "Passes of one model in turns: sequential, cut into nano-batches that follow each other, and overlapped by the"
        " best plan of the search. On this card both run at the power limit, so overlap can only gain what it saves in energy.",
    )
    cut, gained = [], []
    for (num_rows, decode), hows in ablations(rows).items():
        base = hows.get(SEQUENTIAL)
        for how, r in hows.items():
            if base and how != SEQUENTIAL:
                watts = f", {num(round(r.number('watts')))} W" if r.number("watts") else ""
                place = f"{num_rows} rows, {decode} decoding, {how}{watts}"
                (cut if how == SPLIT else gained).append((base.number("ms") / r.number("ms"), place))
    text = ", ".join(f"{fixed(100 * (1 / g - 1), 1)}% ({place})" for g, place in cut)
    worst = min((g for g, _ in cut), default=None)
    claim.part(
        "cut only", "costs 13.2%", "costs 5% to 20% at worst", "nano_ablation *", cut and (text, 1.05 <= 1 / worst <= 1.2, text) or None
    )
    best = max(gained, default=None)
    text = f"{fixed(best[0], 3)} times ({best[1]})" if best else ""
    claim.part("overlapped", "1.07 to 1.17 times", "at least 1.07 times", "nano_ablation *", best and (text, best[0] >= 1.07, text))
    return claim


def nf_12(rows):
    claim = Claim(
        "NF-12",
        "Overlap uses 68.5% of the arithmetic, a sequential engine about 40%",
        f"{NANOFLOW}, figure 10; A100",
        "The share of compute / (2 P) that the full engine reaches, which is the share of time in which a device that only"
        " multiplies would be busy.",
    )
    for what, suffix, source, rule, holds in (
        ("sequential", "", "about 40%", "35% to 45%", lambda v: 35 <= v <= 45),
        ("with plans", "_nano", "68.5%", "at least 68.5%", lambda v: v >= 68.5),
    ):
        value = share(engine(rows, suffix))
        text = f"{fixed(value, 1)}%" if value else DASH
        claim.part(what, source, rule, f"throughput llama3_8b_1024_512{suffix}", (text, holds(value), text) if value else None)
    return claim


def claims(rows, ceilings):
    return [
        nf_1(rows, ceilings),
        nf_2(rows, ceilings),
        nf_3(rows),
        nf_4(rows),
        nf_5(rows),
        nf_6(rows),
        nf_7(rows),
        nf_8(rows),
        nf_12(rows),
    ]
