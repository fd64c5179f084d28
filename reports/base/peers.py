# SPDX-License-Identifier: Apache-2.0
"""Times of other libraries on one NVIDIA H200, for rows that have no peer in the same run.

Measured in November 2026 with the method of `cairn bench` (random data, inputs rotated past the L2, CUDA
graph replays, medians; driver 580.159, CUDA 13.0): FlashInfer 0.6.17, the fastest of its back ends for
each shape.  The times were not taken in the run beside which they are shown: they are a reference point,
not a verdict on another machine.  16-bit types are interchangeable here: bytes and flops are equal.
"""

GPU = "NVIDIA H200"
LIBRARY = "FlashInfer 0.6.17"

# (op, case without its type): microseconds
MICROSECONDS = {
    ("rmsnorm", "rows1_dim4096"): 1.59,
    ("rmsnorm", "rows128_dim4096"): 2.39,
    ("rmsnorm", "rows128_dim4096_residual"): 2.96,
    ("rmsnorm", "rows4096_dim4096_residual"): 35.1,
    ("silu_mul", "rows1_dim14336"): 3.79,
    ("silu_mul", "rows128_dim14336"): 5.93,
    ("silu_mul", "rows4096_dim14336"): 89.2,
    ("rope", "rows1_heads32_8_dim128"): 1.91,
    ("rope", "rows128_heads32_8_dim128"): 2.58,
    ("sample", "rows1_vocab128256_topk50_topp90"): 62.3,
    ("sample", "rows64_vocab128256_topk50_topp90"): 155.0,
    ("sample", "rows256_vocab128256_topk50_topp90"): 247.6,
    ("sample", "rows1_vocab128256_topp90"): 34.2,
    ("sample", "rows64_vocab128256_topp90"): 70.8,
    ("sample", "rows256_vocab128256_topp90"): 116.8,
    ("sample", "rows64_vocab128256_plain"): 46.2,
    ("attn_paged", "decode_h32_8_b1_kv1024"): 8.44,
    ("attn_paged", "decode_h32_8_b1_kv4096"): 12.04,
    ("attn_paged", "decode_h32_8_b1_kv16384"): 25.4,
    ("attn_paged", "decode_h32_8_b16_kv1024"): 21.5,
    ("attn_paged", "decode_h32_8_b16_kv4096"): 72.3,
    ("attn_paged", "decode_h32_8_b16_kv16384"): 253.2,
    ("attn_paged", "decode_h32_8_b64_kv1024"): 73.2,
    ("attn_paged", "decode_h32_8_b64_kv4096"): 254.2,
    ("attn_paged", "decode_h32_8_b128_kv1024"): 138.2,
    ("attn_paged", "decode_h32_8_b128_kv4096"): 498.1,
    ("attn_paged", "decode_h32_32_b1_kv1024"): 8.94,
    ("attn_paged", "decode_h32_32_b1_kv4096"): 23.9,
    ("attn_paged", "decode_h32_32_b16_kv4096"): 246.1,
    ("attn_paged", "prefill_h32_8_b16_s1024_causal"): 415.9,
    ("attn_paged", "prefill_h32_8_b4_s4096_causal"): 1199,
    ("attn_paged", "prefill_h32_8_b1_s16384_causal"): 4476,
}


def us(record):
    """The library's time for this row on this row's GPU, or None."""
    if record.get("gpu") != GPU:
        return None
    words = [w for w in record.case.split("_") if w not in ("f16", "bf16")]
    return MICROSECONDS.get((record.op, "_".join(words)))
