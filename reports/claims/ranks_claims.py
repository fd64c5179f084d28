# SPDX-License-Identifier: Apache-2.0
"""Several GPUs: claims AT-8 to AT-10, of the survey's sections on ring attention, context parallelism and pipelines."""

from base import ranks
from base.page import percent
from base.verdicts import Claim
from claims.attention_claims import SURVEY

RING = f"Liu et al. 2023, Ring Attention (arXiv 2310.01889), {SURVEY}, section 7; TPU v4 and A100"
CONTEXT = f"Yang et al. 2024, Context Parallelism (arXiv 2411.01783), {SURVEY}, section 8; H100"
PIPELINE = f"chunked pipeline prefill, {SURVEY}, section 9; SGLang reports 82.8% strong scaling of four stages on H20"
SCALING = 0.828
GPUS = (2, 4, 8)
TOKENS = 127  # thousands: 130048 tokens leave room for an answer
HIDDEN = 0.95  # of the ideal time
ATTENTION = 0.8  # share of the computation of a prompt of 128K tokens with llama32-1b


def at_8(rows):
    claim = Claim(
        "AT-8",
        "Ring attention scales the context with the number of devices, and computation hides its communication",
        RING,
        "A prompt in one pass on the shape of Llama-3.2-1B, so that all keys travel: time to the first token with zig-zag"
        " pieces, in percent of an ideal one, the time of one GPU in the same run divided by the GPUs.",
    )
    found = ranks.rings(rows)
    for n in GPUS:
        r = found.get(n, {}).get(TOKENS)
        share = r and ranks.ideal_share(r)
        claim.part(
            f"{n} GPUs, {TOKENS}K tokens",
            "no loss",
            f"at least {percent(HIDDEN)} of ideal",
            f"ring_attention llama32_1b_128k_n{n}",
            share and (percent(share), share >= HIDDEN, f"{percent(share)} of ideal"),
        )
    claim.part(
        "tokens that fit N GPUs, against one",
        "N times",
        "at least 0.95 N times",
        "rows of the longest context that ranks can hold (--cp-stripes)",
        None,
    )
    return claim


def at_9(rows):
    claim = Claim(
        "AT-9",
        "Context parallelism with zig-zag avoids the imbalance that the causal mask causes",
        CONTEXT,
        "The same prompt with contiguous and with zig-zag pieces. With contiguous ones the last of N ranks attends to"
        " 2 - 1/N times the average number of keys; attention is four fifths of this computation, so zig-zag can be"
        " 1 + 0.8 (1 - 1/N) times as fast.",
    )
    found = ranks.rings(rows)
    for n in GPUS:
        r = found.get(n, {}).get(TOKENS)
        ideal = 1 + ATTENTION * (1 - 1 / n)
        gain = r and r.need("contiguous_ms") / r.need("zigzag_ms")
        claim.part(
            f"{n} GPUs, {TOKENS}K tokens",
            f"{ideal:.2f} times",
            f"at least {percent(HIDDEN)} of {ideal:.2f} times",
            f"ring_attention llama32_1b_128k_n{n}",
            gain and (f"{gain:.2f} times", gain >= HIDDEN * ideal, f"{gain:.2f} times with {n} GPUs"),
        )
    return claim


def at_10(rows):
    claim = Claim(
        "AT-10",
        "Prefill in a pipeline of chunks cuts the time to the first token as devices are added",
        PIPELINE,
        "Llama-3-8B with its layers divided into stages, the fastest of the measured sizes of a first chunk, against one"
        " GPU with passes of 2048 rows.",
    )
    found = ranks.pipelines(rows)
    for tokens in (32, 128):
        times = found.get(tokens, {})
        for n in GPUS:
            one, here, least = times.get(1), times.get(n), SCALING * n
            gain = one and here and one[0] / here[0]
            claim.part(
                f"{tokens}K tokens, {n} GPUs",
                f"{percent(SCALING)} of {n} times",
                f"at least {least:.2f} times as fast",
                f"pp_prefill llama3_8b_{tokens}k_n1_*, n{n}_*",
                gain and (f"{gain:.2f} times", gain >= least, f"{gain:.2f} times with {n} GPUs at {tokens}K"),
            )
    return claim


def claims(rows):
    return [at_8(rows), at_9(rows), at_10(rows)]
