# SPDX-License-Identifier: Apache-2.0
"""The attention engine: claims FI-1 to FI-7.

Rows: op attn_bsr, attn_dense and attn_paged (fused/attention/) and attn_replay (fused/attention/bsr), from a GPU; generate
(cairn generate).
"""

from claims.attention_claims import faster, row, took, value
from claims.fused_claims import there
from base.page import DASH, num, us
from base.verdicts import Claim
from base.views import other_run

FLASHINFER = "Ye et al. 2025, FlashInfer (arXiv 2501.01005)"


def less(ratio):
    """A ratio of times in words: 1.25 is 20% less."""
    share = 1 - 1 / ratio
    return f"{abs(share) * 100:.0f}% {'less' if share >= 0 else 'more'}"


def compared(rows, ours, other):
    """('10.0 µs against 12.5 µs: 20% less', ratio) of two (op, case[, impl]); None if a row is missing.

    The text says so if the rows are of different runs, whose times may differ by more than the claim does.
    """
    ratio = faster(rows, ours, other)
    if not ratio:
        return None
    runs = ", in different runs" if other_run(row(rows, *ours), row(rows, *other)) else ""
    return f"{us(took(rows, *ours))} µs against {us(took(rows, *other))} µs: {less(ratio)}{runs}", ratio


def least_part(claim, what, source, rule, needs, found, least):
    """A part that holds if the ratio is at least so large; found: that of compared()."""
    claim.part(what, source, rule, needs, found and (found[0], found[1] >= least, found[0]))


def fi_1(rows):
    claim = Claim(
        "FI-1",
        "The time between tokens is 29% to 69% shorter than with kernels from a compiler",
        f"{FLASHINFER}, figure 7; H100 and A100, SGLang with Triton's kernels",
        "The engine with its own attention, and with a straightforward paged kernel in its place: the second step of the"
        " ladder, a CTA for each request and KV head. Both steps are the same list of operations besides. Triton's kernels"
        " are not run here.",
    )
    case = ("generate", "llama3_8b_b16_kv1024")
    least_part(claim, "Llama-3-8B, 16 requests of 1024 tokens", "29% to 69% less", "at least 29% less",
               f"{' '.join(case)} by cuda:unfused and cuda:ladder2",
               compared(rows, (*case, "cuda:unfused"), (*case, "cuda:ladder2")), 1 / 0.71)  # fmt: skip
    return claim


ROTATED = "rope_h32_8_b1_kv16384_bf16"


def fi_2(rows):
    claim = Claim(
        "FI-2",
        "Fusing the rotary embedding into attention makes long contexts 28% to 30% faster",
        f"{FLASHINFER}, figure 9: Vicuna-13B with StreamingLLM",
        "Attention that rotates cached keys by their place in the cache as it reads them, against a rotation of all of"
        " these keys and then attention by attn_paged.",
    )
    case = ("attn_variant", ROTATED)
    least_part(claim, "16384 keys", "28% to 30% less", "at least 28% less", f"attn_variant {ROTATED} by cuda and unfused",
               compared(rows, case, (*case, "unfused")), 1 / 0.72)  # fmt: skip
    return claim


SAMPLES = (
    ("4 samples of a prompt of 4096 tokens", "prefix4096_suffix128_h32_8_b4_bf16"),
    ("64 samples of a prompt of 32768 tokens", "prefix32768_suffix128_h32_8_b64_bf16"),
)


def fi_3(rows):
    claim = Claim(
        "FI-3",
        "Composable formats make parallel generation 13% to 17% faster",
        f"{FLASHINFER}, figure 10: Llama-3.1-8B and 70B, MLC-Engine",
        "Attention of one step, 128 tokens after the prompt: the prompt as one block row of all samples and the rest as a"
        " row of each sample, against one list of both for each sample; and the time between tokens of the engine, which"
        " has no composable formats yet.",
    )
    for what, case in SAMPLES:
        found = compared(rows, ("attn_bsr", case), ("attn_bsr", f"one_list_{case}"))
        least_part(claim, f"attention, {what}", DASH, "at least 13% less", f"attn_bsr {case}, one_list_{case}", found, 1 / 0.87)
    case = ("generate", "llama3_8b_n4_kv4096")
    least_part(claim, "Llama-3-8B, 4 samples of a prompt of 4096 tokens", "13% to 17% less", "at least 13% less",
               f"{' '.join(case)} by cuda and cuda:one_list", compared(rows, case, (*case, "cuda:one_list")), 1 / 0.87)  # fmt: skip
    return claim


FORMS = (
    ("pages", "page16_h32_8_b64_kv4096_bf16"),
    ("a shared prefix", "prefix32768_suffix128_h32_8_b64_bf16"),
    ("a token tree", "tree64_h32_8_b16_kv4096_bf16"),
    ("chosen blocks of each head", "quest16_h32_b1_s4096_keys1024_bf16"),
)
PAGE_1, CONTIGUOUS, PAGED = (
    ("attn_bsr", "own_page1_h32_8_b16_kv4096_bf16"),
    ("attn_bsr", "own_contiguous_h32_8_b16_kv4096_bf16"),
    ("attn_paged", "decode_h32_8_b16_kv4096_bf16"),
)
PREFILL = (("attn_bsr", "page16_h32_8_b4_s4096_causal_bf16"), ("attn_dense", "h32_8_d128_b4_s4096_causal_bf16"))


def fi_4(rows):
    claim = Claim(
        "FI-4",
        "Paged, prefix-tree, tree and top-k caches are one kernel over one block-sparse format",
        f"{FLASHINFER}, section 3.1, figure 12 and tables 9 to 11; H100 and A100",
        "Rows of attn_bsr, each verified before it was timed. Its cost: pages of one slot against contiguous keys for"
        " decoding (the faster of attn_bsr with one block a request and of attn_paged), and pages of 16 slots, which are"
        " gathered alike, against attn_dense for a prompt.",
    )
    found = [(name, rows.by_key.get(("attn_bsr", case, "cuda"))) for name, case in FORMS]
    wrong = [name for name, record in found if record and record.get("ok") is False]
    claim.part("pages, prefix, tree and top-k", "one kernel", "a correct row of attn_bsr for each",
               f"attn_bsr {', '.join(case for _, case in FORMS)}",
               (", ".join(f"{name} {us(record.ns)} µs" for name, record in found), not wrong, "wrong: " + ", ".join(wrong))
               if all(record for _, record in found) else None)  # fmt: skip
    dense = min((r for r in (CONTIGUOUS, PAGED) if took(rows, *r)), key=lambda r: took(rows, *r), default=None)
    known = dense and row(rows, *CONTIGUOUS) and compared(rows, PAGE_1, dense)
    least_part(claim, "decoding, pages of one slot, 16 requests of 4096 keys", "1% more time", "at most 5% more",
               f"attn_bsr {PAGE_1[1]}, {CONTIGUOUS[1]}", known, 1 / 1.05)  # fmt: skip
    least_part(claim, "a prompt in pages, 4 x 4096 tokens, causal", "10% more time", "at most 15% more",
               f"attn_bsr {PREFILL[0][1]}, attn_dense {PREFILL[1][1]}", compared(rows, *PREFILL), 1 / 1.15)  # fmt: skip
    return claim


# (lengths, planned, fixed splits)
LENGTHS = (
    ("1024 each", "own_page16_h32_8_b16_kv1024_bf16", "decode_h32_8_b16_kv1024_bf16"),
    ("512 to 1022", "own_page16_h32_8_b16_uniform_bf16", "lengths_uniform_h32_8_b16_bf16"),
    ("as 1 / rank, mean 1024", "own_page16_h32_8_b16_zipf_bf16", "lengths_zipf_h32_8_b16_bf16"),
)


def fi_5(rows):
    claim = Claim(
        "FI-5",
        "Load-balanced plans beat fixed splits if the lengths of requests are skewed",
        f"{FLASHINFER}, figure 8: 70% to 83% of the bandwidth against 45%; H100 and A100",
        "Decoding of 16 requests, 32 query and 8 KV heads of 128, pages of 16: attn_bsr, whose plan cuts all keys into equal"
        " shares, against attn_paged, which splits every request alike. The time of the plan is part of attn_bsr's. (Where the"
        " host knows the number of all keys, attn_paged divides by length, too; the figure shows this beside.)",
    )
    for name, planned, fixed in LENGTHS:
        ours, other = ("attn_bsr", planned), ("attn_paged", fixed)
        found = compared(rows, ours, other)
        rates = [value(rows, *r, "gbps") for r in (ours, other)]
        if found and all(rates):
            found = (f"{found[0]}; {rates[0] / 1000:.2f} and {rates[1] / 1000:.2f} TB/s", found[1])
        skewed = planned != LENGTHS[0][1]
        least_part(claim, f"lengths {name}", "less time" if skewed else DASH, "less" if skewed else "at most 10% more",
                   f"attn_bsr {planned}, attn_paged {fixed}", found, 1.0001 if skewed else 1 / 1.1)  # fmt: skip
    return claim


def fi_6(rows):
    claim = Claim(
        "FI-6",
        "Plans can change while the captured CUDA graph stays the same",
        f"{FLASHINFER}, section 3.3.1 and algorithm 1",
        "A call of attn_bsr is captured once; then other lists, of other lengths, are written into the same arrays and the"
        " graph is replayed. Every result is compared bit by bit with that of a call outside of the graph.",
    )
    record = next(iter(rows.find("attn_replay", impl="cuda")), None)
    result = None
    if record:
        replays, equal = record.need("replays"), record.need("equal")
        text = f"{num(equal)} of {num(replays)} replays equal"
        result = (text, replays > 1 and equal == replays, text)
    claim.part("replays with other lengths", "correct", "all equal", "attn_replay *", result)
    return claim


VARIANTS = (("ALiBi", "alibi"), ("softcap", "softcap"), ("a window of 1024", "window1024"))
PLAIN = "h16_d128_b16_s1024_causal_bf16"


def fi_7(rows):
    claim = Claim(
        "FI-7",
        "A variant of attention takes a few lines and loses no speed",
        f"{FLASHINFER}, section 3.2.3 and tables 1 to 4; H100",
        "Each variant, compiled from a few lines of its own, against the kernel without one on the same shape. The softcap"
        " and the window of attn_paged are part of its kernel and no variants in this sense.",
    )
    plain = ("attn_variant", f"plain_{PLAIN}")
    found = there((name, faster(rows, ("attn_variant", f"{case}_{PLAIN}"), plain)) for name, case in VARIANTS)
    text = ", ".join(f"{name} {gain:.2f}" for name, gain in found) + " times as fast"
    claim.part("ALiBi, softcap, window", "no loss", "at least 0.97 times as fast, each",
               f"attn_variant {', '.join(f'{case}_{PLAIN}' for case in ('plain', *(c for _, c in VARIANTS)))}",
               (text, all(gain >= 0.97 for _, gain in found), text) if len(found) == len(VARIANTS) else None)  # fmt: skip
    return claim


def claims(rows):
    return [f(rows) for f in (fi_1, fi_2, fi_3, fi_4, fi_5, fi_6, fi_7)]
