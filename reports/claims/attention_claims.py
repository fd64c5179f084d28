# SPDX-License-Identifier: Apache-2.0
"""Attention: claims AT-1 to AT-7, of the survey's sections on MQA, GQA, MLA and FlashAttention.

Rows: op attn_dense, attn_bwd, attn_fp8, attn_quant and attn_paged (fused/attention/), cluster_attn and cluster_mla, from a
GPU; attn_teach (fused/attention/teach) counts bytes on the CPU.  sections/attention_section.py draws them.
"""

from claims.fused_claims import listed, size, there
from base.page import DASH, num, size_name, us
from base.verdicts import Claim

SHOWN = ("attn_dense", "attn_fp8", "attn_quant", "attn_bwd", "attn_bsr", "attn_merge", "attn_variant")
COUNTED = {"attn_teach"}  # rows of the CPU
KNOWN = {*SHOWN, *COUNTED, "attn_replay", "dropin"}  # operations with a place in the section on attention

SURVEY = "as summarised by a survey of attention"
MQA = f"Shazeer 2019 (MQA) and Ainslie et al. 2023 (GQA), {SURVEY}, sections 1 and 2; TPU v2"
MLA = f"DeepSeek-AI 2024, DeepSeek-V2, {SURVEY}, section 3"
FLASH = f"Dao et al. 2022, FlashAttention (arXiv 2205.14135), {SURVEY}, section 4; A100"
FLASH2 = f"Dao 2023, FlashAttention-2 (arXiv 2307.08691), {SURVEY}, section 5; A100"
FLASH3 = f"Shah et al. 2024, FlashAttention-3 (arXiv 2407.08608), {SURVEY}, section 6; H100"


def row(rows, op, case, impl="cuda"):
    """The row, if it exists and is correct."""
    record = rows.by_key.get((op, case, impl))
    return record if record and record.get("ok") is not False else None


def value(rows, op, case, key="median_ns", impl="cuda"):
    record = row(rows, op, case, impl)
    return record.number(key) if record else None


def took(rows, op, case, impl="cuda"):
    return value(rows, op, case, "median_ns", impl)


def faster(rows, ours, other):
    """How many times as fast the first (op, case[, impl]) is as the second; None if a row is missing."""
    mine, its = took(rows, *ours), took(rows, *other)
    return its / mine if mine and its else None


# ---------------------------------------------------------------- heads

# {KV heads: case}: 32 query heads of 128, 16 bits
MANY = {
    32: "decode_h32_32_b16_kv4096_f16",
    8: "decode_h32_8_b16_kv4096_bf16",
    4: "decode_h32_4_b16_kv4096_bf16",
    1: "decode_h32_1_b16_kv4096_bf16",
}
ONE = {32: "decode_h32_32_b1_kv4096_f16", 8: "decode_h32_8_b1_kv4096_bf16"}


def by_heads(rows, cases, heads, key="median_ns"):
    """[(KV heads, value)] of all these heads; [] if a row is missing."""
    found = [(n, value(rows, "attn_paged", cases[n], key)) for n in heads]
    return [] if any(v is None for _, v in found) else found


def at_1(rows):
    claim = Claim(
        "AT-1",
        "The bytes of the cache and the time of decoding fall with the number of KV heads: MHA, GQA, MQA",
        MQA,
        "Decoding with 32 query heads of 128 against a paged cache of 16-bit keys and values, by the number of KV heads."
        " Bytes are those of the cache, the queries and the results. Times are those of attention alone; the source's"
        " are of a whole decoder, 46 µs a token with MHA and 3.8 µs with MQA.",
    )
    for name, heads in (("MHA to GQA", (32, 8)), ("GQA to MQA", (8, 4, 1))):
        names = f"{', '.join(map(str, heads[:-1]))} and {heads[-1]} KV heads"
        found = by_heads(rows, MANY, heads, "bytes")
        text = ", ".join(f"{v / 1e6:.0f} MB with {n}" for n, v in found)
        off = any(abs(v / found[0][1] * heads[0] / n - 1) > 0.02 for n, v in found)
        needs = f"attn_paged {', '.join(MANY[n] for n in heads)}"
        claim.part(f"bytes, {name}: {names}", "in proportion", "in proportion to the heads, within 2%", needs,
                   (text, not off, text) if found else None)  # fmt: skip
        found = by_heads(rows, MANY, heads)
        text = ", ".join(f"{us(v)} µs with {n}" for n, v in found)
        claim.part(f"time, 16 requests of 4096 keys: {names}", "falls", "falls at each step", needs,
                   (text, descending(found), text) if found else None)  # fmt: skip
    found = by_heads(rows, ONE, (32, 8))
    text = ", ".join(f"{us(v)} µs with {n}" for n, v in found)
    claim.part("time, 1 request of 4096 keys: 32 and 8 KV heads", "falls", "falls", f"attn_paged {', '.join(ONE.values())}",
               (text, descending(found), text) if found else None)  # fmt: skip
    return claim


def descending(found):
    return all(b < a for (_, a), (_, b) in zip(found, found[1:]))


def per_token(rows, op, shape):
    """Bytes of the cache per token and layer, from the difference between rows of the same shape with other lengths."""
    short, long = (value(rows, op, f"{shape}_kv{n}", "bytes") for n in (1024, 4096))
    return (long - short) / (4096 - 1024) if short and long else None


def at_2(rows):
    claim = Claim(
        "AT-2",
        "MLA caches d_c elements and the rotated part for each token and layer",
        MLA,
        "Bytes that a call reads for each further token in the cache, by the operations' own counts: rows of the fused"
        " attention blocks with 1024 and 4096 keys, batch 1, 16-bit elements. d_c is 512, the rotated part 64 elements.",
    )
    mla = per_token(rows, "cluster_mla", "dsv2lite_b1")
    wanted = 2 * (512 + 64)
    text = mla and f"{num(mla)} B"
    claim.part("MLA (DeepSeek-V2-Lite)", f"d_c + 64 elements: {num(wanted)} B", f"equal to {num(wanted)} B",
               "cluster_mla dsv2lite_b1_kv1024, _kv4096", mla and (text, mla == wanted, text))  # fmt: skip
    for name, shape in (("32 KV heads of 128 (Llama-2-7B)", "llama2_7b_b1"), ("8 KV heads of 128 (Llama-3-8B)", "llama3_8b_b1")):
        heads = per_token(rows, "cluster_attn", shape)
        text = mla and heads and f"{num(mla)} B against {num(heads)} B: {heads / mla:.1f} times fewer"
        claim.part(f"MLA against {name}", "fewer", "fewer", f"cluster_mla dsv2lite_b1_kv*, cluster_attn {shape}_kv1024, _kv4096",
                   text and (text, mla < heads, text))  # fmt: skip
    return claim


# ---------------------------------------------------------------- counted bytes

ALGORITHMS = {"standard": "standard", "flash1": "FlashAttention", "flash2": "FlashAttention-2"}
CONSTANT = {"flash1": 12, "flash2": 8}  # of N^2 d^2 / M in the forward pass; fused/attention/teach/README.md derives them


def lengths(rows, impl):
    """The correct rows of an algorithm, by length."""
    found = rows.find("attn_teach", impl=impl, where=lambda r: r.get("ok") is not False and r.number("kv_len"))
    return sorted(found, key=lambda r: r.number("kv_len"))


def teach(rows, impl, key):
    """[(length, value)] of the algorithm's counts, by length, without those that are 0."""
    return there((r.number("kv_len"), r.number(key)) for r in lengths(rows, impl))


def keys(n):
    return size(n) if n >= 1024 else num(n)


def growth(found):
    """The largest factor by which a value grows when the length doubles; None without two such lengths."""
    at = dict(found)
    return max((at[2 * n] / v for n, v in found if v and 2 * n in at), default=None)


def counted_memory(claim, rows, direction, impls):
    for impl in impls:
        found = teach(rows, impl, f"{direction}_memory_bytes")
        most, quadratic = growth(found), impl == "standard"
        text = most and f"{most:.2f} times for twice the length; {size_name(found[-1][1])} at {size(found[-1][0])} (simulated)"
        claim.part(
            f"memory of the {direction} pass, {ALGORITHMS[impl]}",
            "quadratic in N" if quadratic else "linear in N",
            "more than 3.9 times for twice the length" if quadratic else "at most 2.1 times for twice the length",
            f"attn_teach n*_d64 by {impl}",
            most and (text, most > 3.9 if quadratic else most <= 2.1, text),
        )


def fewer_bytes(rows, impl, direction):
    """[(length, standard attention's bytes over this algorithm's)]"""
    standard = dict(teach(rows, "standard", f"{direction}_bytes"))
    return there((n, standard.get(n, 0) / v) for n, v in teach(rows, impl, f"{direction}_bytes"))


def counted_bytes(claim, rows, direction, impl, source):
    found = [(keys(n), v) for n, v in fewer_bytes(rows, impl, direction)]
    text = f"times fewer: {listed(found, '{:.1f}')} (simulated)"
    claim.part(f"bytes of the {direction} pass, standard against {ALGORITHMS[impl]}", source, "fewer at every length",
               f"attn_teach n*_d64 by standard and {impl}",
               (text, all(v > 1 for _, v in found), text) if found else None)  # fmt: skip


def at_3(rows):
    claim = Claim(
        "AT-3",
        "FlashAttention needs memory linear in the length N, and O(N^2 d^2 / M) accesses to memory",
        FLASH,
        "The algorithms line by line on a machine that counts every element between memory and a chip with M bytes of SRAM:"
        " one head of 64, 100 KiB as in the source, 16-bit elements. The results are verified, and nothing is timed.",
    )
    counted_memory(claim, rows, "forward", ALGORITHMS)
    for impl, constant in CONSTANT.items():
        result = None
        for record in lengths(rows, impl)[-1:]:
            moved, sram, n, d = (record.need(k) for k in ("forward_bytes", "sram_bytes", "kv_len", "head_dim"))
            times = (moved / 2) * (sram / 2) / (n * d) ** 2
            text = f"{times:.2f} N^2 d^2 / M at {size(n)} (simulated)"
            result = (text, abs(times / constant - 1) <= 0.05, text)
        claim.part(f"accesses of the forward pass, {ALGORITHMS[impl]}", "proportional to N^2 d^2 / M",
                   f"{constant} N^2 d^2 / M elements at the longest length, within 5%", f"attn_teach n*_d64 by {impl}",
                   result)  # fmt: skip
        counted_bytes(claim, rows, "forward", impl, "many times fewer")
    return claim


# ---------------------------------------------------------------- speed

STANDARD = (
    ("512 tokens", "h16_d64_b32_s512_bf16"),
    ("1K", "h16_d64_b16_s1024_bf16"),
    ("2K", "h16_d64_b8_s2048_bf16"),
)
GPT2 = "h16_d64_b64_s1024_causal_bf16"
LADDER = "h16_d128_b4_s4096_causal_bf16"


def at_4(rows):
    claim = Claim(
        "AT-4",
        "FlashAttention is about 3 times as fast as standard attention up to 2K tokens, and 7.6 times on the shapes of GPT-2",
        FLASH,
        "attn_dense against standard attention in the same run: a matrix product, a softmax and a second product, with S"
        " and P in memory (table unfused). S is fp32, because S in 16 bits exceeds the tolerance of attn_dense. The last"
        " part refers to the first kernel of the ladder, which is no standard attention: it has no tiles and no tensor"
        " cores, but keeps S out of memory.",
    )
    found = there((name, faster(rows, ("attn_dense", case), ("attn_dense", case, "unfused"))) for name, case in STANDARD)
    text = listed(found, "{:.1f} times")
    claim.part("512 to 2048 tokens, 16 heads of 64", "about 3 times", "at least 3 times at best",
               f"attn_dense {', '.join(case for _, case in STANDARD)} by cuda and unfused",
               (text, max(v for _, v in found) >= 3, text) if len(found) == len(STANDARD) else None)  # fmt: skip
    for what, source, least, case, other in (
        ("GPT-2 medium: 1024 tokens, 16 heads of 64, causal", "7.6 times", 7.6, GPT2, "unfused"),
        ("4 x 4096 tokens, causal, against a thread for each row", DASH, 3, LADDER, "ladder1"),
    ):
        gain = faster(rows, ("attn_dense", case), ("attn_dense", case, other))
        text = gain and f"{gain:.1f} times"
        claim.part(what, source, f"at least {least} times", f"attn_dense {case} by cuda and {other}",
                   gain and (text, gain >= least, text))  # fmt: skip
    return claim


CAUSAL = (("4K", "h16_d128_b4_s4096"), ("16K", "h16_d128_b1_s16384"))


def at_5(rows):
    claim = Claim(
        "AT-5",
        "Skipping masked blocks makes causal attention 1.7 to 1.8 times as fast at long lengths",
        FLASH2,
        "The forward pass with a causal mask against the same without one, 16 heads of 128. Half of the pairs are masked,"
        " so that skipping alone gains a factor of at most 2; a larger one means that the kernel without a mask computes"
        " at a lower rate.",
    )
    for name, case in CAUSAL:
        cases = [("attn_dense", f"{case}_{end}") for end in ("causal_bf16", "bf16")]
        gain, rates = faster(rows, *cases), [value(rows, *c, "tflops") for c in cases]
        text = gain and f"{gain:.2f} times"
        if gain and all(rates):
            text += f" ({rates[0]:.0f} TFLOP/s causal, {rates[1]:.0f} without a mask)"
        claim.part(f"{name} tokens", "1.7 to 1.8 times", "at least 1.7 times",
                   f"attn_dense {case}_causal_bf16, {case}_bf16", gain and (text, gain >= 1.7, text))  # fmt: skip
    return claim


FP8 = [f"{case}_{end}" for _, case in CAUSAL for end in ("causal_bf16", "bf16")]


def fp8_gains(rows):
    """[(case, gain)] of attn_fp8 over attn_dense: of FP8 and of other shapes with both; [] if one of FP8 is missing."""
    others = [r.case for r in rows.find("attn_fp8", impl="cuda") if not r.case.startswith("outliers")]
    found = there((c, faster(rows, ("attn_fp8", c), ("attn_dense", c))) for c in dict.fromkeys([*FP8, *others]))
    return found if {*FP8} <= {case for case, _ in found} else []


def at_6(rows):
    claim = Claim(
        "AT-6",
        "The forward pass in fp8 is nearly twice as fast as in 16 bits; block quantisation and incoherent processing reduce"
        " the error",
        FLASH3,
        "attn_fp8 (e4m3, bf16 results) against attn_dense (bf16) on the same shapes, without the time of quantisation."
        " Errors: root mean square against exact attention of the unquantised numbers, which are N(0, 1) with a share of"
        " 0.001 that has N(0, 100) added, as in the source. Both rows have a scale for each block of 128 tokens; rotated"
        " means random signs and a Hadamard transform of q and k.",
    )
    found = fp8_gains(rows)
    best = max(found, key=lambda f: f[1], default=None)
    text = best and f"{min(v for _, v in found):.2f} to {best[1]:.2f} times ({len(found)} shapes, best: {best[0]})"
    claim.part("speed", "nearly 2 times", "at least 1.8 times at best",
               f"attn_fp8 and attn_dense {', '.join(FP8)}",
               best and (text, best[1] >= 1.8, text))  # fmt: skip
    errors = [value(rows, "attn_fp8", f"outliers_{how}", "rmse") for how in ("rotated", "plain")]
    text = None not in errors and f"{errors[0]:.2g} rotated, {errors[1]:.2g} not"
    claim.part("error with incoherent processing", "smaller", "smaller than without it", "attn_fp8 outliers_rotated, outliers_plain",
               (text, errors[0] < errors[1], text) if text else None)  # fmt: skip
    text = errors[0] is not None and f"{errors[0]:.2g}"
    claim.part("error with both", "9.1e-3", "at most 1e-2", "attn_fp8 outliers_rotated",
               (text, errors[0] <= 1e-2, text) if text else None)  # fmt: skip
    return claim


def at_7(rows):
    claim = Claim(
        "AT-7",
        "A backward pass that recomputes needs memory linear in N",
        FLASH2,
        "Counted by the algorithms as in AT-3, and on the GPU by the workspace of attn_bwd: 16384 tokens as four sequences"
        " and as one, 16 heads of 128. Memory quadratic in N would be four times as much for one sequence.",
    )
    counted_memory(claim, rows, "backward", ("standard", "flash2"))
    counted_bytes(claim, rows, "backward", "flash2", "fewer; 2 to 4 times as fast")
    cases = [f"h16_d128_{shape}_causal_bf16" for shape in ("b4_s4096", "b1_s16384")]
    found = [value(rows, "attn_bwd", c, "workspace_bytes") for c in cases]
    rates = [value(rows, "attn_bwd", c, "tflops") for c in cases]
    result = None
    if None not in found and found[0]:
        text = f"{found[0] / 1e6:.0f} and {found[1] / 1e6:.0f} MB"
        if all(rates):
            text += f", at {rates[0]:.0f} and {rates[1]:.0f} TFLOP/s"
        result = (text, found[1] <= 1.1 * found[0], text)
    claim.part("workspace on the GPU, causal, four sequences of 4096 tokens and one of 16384", "linear in N", "at most 1.1 times as much",
               f"attn_bwd {', '.join(cases)}, with workspace_bytes", result)  # fmt: skip
    return claim


def claims(rows):
    return [f(rows) for f in (at_1, at_2, at_3, at_4, at_5, at_6, at_7)]
