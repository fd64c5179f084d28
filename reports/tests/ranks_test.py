#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the section on several GPUs and of claims AT-8 to AT-10: python3 reports/tests/ranks_test.py"""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from base import ranks  # noqa: E402
from sections import cards  # noqa: E402
from tests.samples import TestCase, claims_of, page_of, raw, rows_of  # noqa: E402


def ring(n, zigzag=1030, contiguous=1700, tokens=130048):
    return raw("ring_attention", f"llama32_1b_{tokens // 1024}k_n{n}", prompt_tokens=tokens, ranks=n, one_ms=1000 * n,
               zigzag_ms=zigzag, contiguous_ms=contiguous)  # fmt: skip


def pipeline(n, gain, tokens=32768, chunk=1024):
    return raw("pp_prefill", f"llama3_8b_{tokens // 1024}k_n{n}_chunk{chunk}", prompt_tokens=tokens, stages=n, chunk_rows=chunk,
               first_token_ns=1e9 / gain)  # fmt: skip


def context(n, way, ms, tokens=8192):
    return raw("cp_prefill", f"llama31_8b_8k_n{n}{way}", prompt_tokens=tokens, ranks=n, first_ms=ms)


def comm(op, impl, ns, num_bytes=16384, **gpus):
    return raw("comm", op, impl, ns, bytes=num_bytes, **gpus)


def holds(records, claim):
    return [p.holds for p in claims_of(records)[claim].parts]


class Figures(TestCase):
    """Figures of two GPUs in the README's table."""

    def figure(self, what, records):
        return next(f for f in cards.figures(rows_of(records)) if f.what.startswith(what))

    def test_fastest_chunks(self):
        records = [pipeline(1, 1, 131072), pipeline(2, 1.6, 131072), pipeline(2, 2, 131072, 2048), pipeline(4, 9, 131072)]
        found = self.figure("first token over 2 GPUs, Llama-3-8B, 131,072", records)
        self.assertEqual((found.value, found.beside), ("500 ms", "one GPU: 1000 ms"))

    def test_each_way(self):
        def rows_of_prompt(n, way, ms):
            return raw("cp_prefill", f"llama31_8b_32k_n{n}{way}", prompt_tokens=32768, ranks=n, first_ms=ms)

        what = "first token over 2 GPUs, Llama-3.1-8B"
        records = [rows_of_prompt(1, "", 1200), rows_of_prompt(2, "_heads", 640)]
        self.assertEqual(self.figure(what, records).value, "")
        self.assertEqual(self.figure(what, [*records, rows_of_prompt(2, "_ring", 650)]).value, "640 / 650 ms")


class Claims(TestCase):
    def test_each_at_its_limit(self):
        for claim, at, good, bad in (
            ("AT-8", 0, ring(2, 1052), ring(2, 1053)),
            ("AT-8", 1, ring(4, 1052), ring(4, 1053)),
            ("AT-9", 0, ring(2, 1000, 1331), ring(2, 1000, 1329)),
            ("AT-9", 1, ring(4, 1000, 1521), ring(4, 1000, 1519)),
        ):
            self.assertIs(holds([good], claim)[at], True, claim)
            self.assertIs(holds([bad], claim)[at], False, claim)
            self.assertTrue(claims_of([bad])[claim].parts[at].why)
            self.assertEqual([i for i, h in enumerate(holds([good], claim)) if h is not None], [at])

    def test_short_prompts_decide_nothing(self):
        self.assertEqual(holds([ring(2, tokens=32768)], "AT-8"), [None] * 4)

    def test_pipelines(self):
        one = pipeline(1, 1, chunk=2048)
        self.assertEqual(holds([one, pipeline(2, 1.66), pipeline(4, 3.3)], "AT-10")[:3], [True, False, None])
        self.assertEqual(holds([one, pipeline(2, 1.5), pipeline(2, 1.66, chunk=2048)], "AT-10")[0], True)
        self.assertEqual(holds([pipeline(2, 1.66)], "AT-10")[0], None)
        self.assertEqual(holds([pipeline(1, 1, 131072), pipeline(2, 1.66)], "AT-10")[0], None)

    def test_context_of_ranks_is_never_claimed(self):
        self.assertEqual(claims_of([ring(n) for n in (2, 4, 8)])["AT-8"].verdict(), ("none", "not measured"))


class Views(TestCase):
    def test_collectives_of_both_kinds_of_names(self):
        found = ranks.collectives(rows_of([
            comm("all_reduce_norm_rows2_dim4096_bf16", "cuda", 2700, gpus=2),
            comm("all_reduce_norm_rows2_dim4096_bf16", "nccl", 8000, gpus=2),
            comm("n4_all_to_all_16kb", "cuda", 3000, gpus=4, ranks=4),
            comm("one_gpu_all_reduce_norm_rows2_dim4096_bf16", "cuda", 1, gpus=1, ranks=2),
        ]))  # fmt: skip
        self.assertEqual(sorted(found), [("all_reduce_norm", 2), ("all_to_all", 4)])
        self.assertEqual(ranks.both(found["all_reduce_norm", 2]), [(16384, 2700, 8000)])
        self.assertEqual(ranks.both(found["all_to_all", 4]), [])

    def test_one_rank_is_in_all_ways(self):
        found = ranks.long_prompts(rows_of([context(1, "", 400), context(4, "_heads", 110), context(4, "_ring", 200)]))
        self.assertEqual(found, {(8, "heads"): {1: 400, 4: 110}, (8, "ring"): {1: 400, 4: 200}})

    def test_no_speedup_without_one_rank(self):
        self.assertEqual(ranks.speedups({2: 5, 4: 3}), [])
        self.assertEqual(ranks.speedups({1: 6, 2: 3}), [(1, 1), (2, 2)])


class Section(TestCase):
    def test_figures_and_tables(self):
        step = {"batch": 16, "context": 1024}
        text = page_of([
            comm("all_reduce_norm_rows2_dim4096_bf16", "cuda", 2700, gpus=2),
            comm("all_reduce_norm_rows2_dim4096_bf16", "nccl", 8100, gpus=2),
            comm("n4_all_to_all_1024kb", "cuda", 30000, 1 << 20, gpus=4, ranks=4),
            comm("n4_all_to_all_1024kb", "nccl", 20000, 1 << 20, gpus=4, ranks=4),
            raw("tp_decode", "llama3_8b_b16_kv1024_n1", ns=4e6, ranks=1, **step),
            raw("tp_decode", "llama3_8b_b16_kv1024_n4", ns=1.6e6, ranks=4, **step),
            raw("tp_decode", "llama3_70b_b16_kv1024_n4", ns=9e6, ranks=4, **step),
            raw("tp_offline", "llama3_8b_n1", ranks=1, tokens_per_s=10000), raw("tp_offline", "llama3_8b_n2", ranks=2, tokens_per_s=16400),
            raw("tp_prefill", "llama3_8b_8k_n1", ranks=1, first_ms=300),
            raw("tp_prefill", "llama3_8b_8k_n2", ranks=2, first_ms=160),
            context(1, "", 400), context(4, "_heads", 110), ring(4, 1250), pipeline(1, 1), pipeline(4, 3.4),
            raw("cp_decode", "dsv2lite_b64_16k_n4_whole", ns=9e6, ranks=4), raw("cp_decode", "dsv2lite_b64_16k_n4_pages", ns=6e6, ranks=4),
            raw("simulated_ranks", "llama32_1b_32k_n4_heads", ranks=4, first_ms=80, simulated_ms=72, error_pct=-10),
            raw("disagg_layer", "llama3_8b_b64_kv1024", link="nvlink", whole_us=8200, local_us=9900, remote_us=9000, added_to_whole_layer_us=25),
            raw("disagg", "lanes_cuda", link="nvlink", one_lane=14000, one_lane_of_all=15000, two_lanes=13300, two_over_one=0.95,
                over_two_engines=0.45),
            raw("disagg", "lanes_cuda_paced_3", link="paced", lanes=3, requests_a_lane=128, mb_per_s=50000, latency_us=5, t_n_us=26.1,
                free_us=16000, paced_us=16217, hidden_pct=87),
            raw("disagg_order", "llama_65b_b64_kv1024_paced", link="paced", layers=8, requests=64, first_us=9210, together_us=9987,
                one_product_us=9876, saved_pct=7.78, saved_of_one_product_pct=6.74),
            raw("disagg_pull", "cuda_nvlink", link="nvlink", prompt_tokens=8191, first_ms=211, pulled_ms=243, exposed_pct=15.2, others=17,
                prompts=14, pulls=13, alone_p99_ms=5.15, beside_p99_ms=6.18, slower_pct=20, cached_p99_ms=5.97),
        ])  # fmt: skip
        self.check_html(text)
        for part in (
            "all_reduce_norm over 2 GPUs is never slower than NCCL",
            "all_to_all over 4 GPUs is faster at 1 MiB",
            "3.00×", "0.67×",  # the collectives' gains
            "2.50×", "62%",  # a step of four ranks
            "3.64×", "91%",  # heads
            "82%",  # of two replicas
            "80%",  # the ring
            "85%",  # the pipeline
            "1.50×",  # latents
            "-10.0%", "+25.0", "0.95×", "0.45×",
            "50,000", "16,217", "87%",  # lanes over a paced link
            "9,210", "9,987", "9,876", "7.8%",  # Q first
            "8,191", "+15%", "6.18", "+20%", "5.97",  # pulls
        ):  # fmt: skip
            self.has(text, part)
        self.assertNotIn("Other operations", text)

    def test_without_rows(self):
        self.assertIn("rows of several GPUs", page_of([]))


class Hosts(TestCase):
    """Rows of hosts that belong to the section."""

    def test_kills_and_cuts_have_a_place(self):
        killed = dict(kills=20, recoveries=20, answers=90, lost=0, changed=0)
        page = page_of([
            raw("disagg_fault", "model_killed", "cpu", **killed), raw("serve_attention", "lead_killed", "cpu", **killed),
            raw("slices", "model_qwen3-8b", "host", attentions=36, slices=37, saved_bytes=8192, create_ms=0.9),
            raw("slices", "model_qwen3_tiny", "host", attentions=3, slices=4, saved_bytes=384, create_ms=0.1),
        ])  # fmt: skip
        for text in ("model workers", "the lead", "qwen3-8b", "8,192"):
            self.has(page, text)
        for text in ("lead workers", "qwen3_tiny", "Other operations"):
            self.has(page, text, False)


if __name__ == "__main__":
    unittest.main()
