#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the claims on overlap inside one GPU: python3 reports/tests/nanoflow_claims_test.py"""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from claims import nanoflow_claims  # noqa: E402
from sections import cards  # noqa: E402
from tests.samples import TestCase, moved, page_of, raw, recording, rows_of  # noqa: E402
from base.records import Ceilings  # noqa: E402


def engine(suffix="", pct=57.2, **more):
    members = {"optimal_pct": pct, "optimal_per_s": 48000, "gemm_tflops": 780, "watts": 690, "mj_per_token": 24.8, "tokens_per_s": 27953}
    return raw("throughput", f"llama3_8b_1024_512{suffix}", **{**members, **more})


def alone(case, ns=100e3, tflops=780, gbps=1000):
    return raw("interference", case, how="alone", sms_a=132, alone_a_ns=ns, tflops_a=tflops, gbps_a=gbps)


def pair(r, p, how="green", sms=100, watts=700):
    case = "gate_up_m1024__dec_b192_kv1024"
    return raw("interference", case, how=how, sms_a=sms, sms_b=132 - sms, r=r, p=p, watts=watts)


def way(how, ms, rows=1024, decode=384):
    return raw("nano_ablation", f"x_rows{rows}_dec3_kv1024_{how}", how=how, rows=rows, decode=decode, ms=ms, watts=690)


def search(seconds):
    return raw("search", f"x_rows{seconds}", search_s=seconds, profile_s=170, predicted_gain=1.02, nanos=2)


def judge(*records):
    """{id: (verdict, [whether each part holds])}"""
    rows = rows_of([moved("stream", "read_1g", 1 << 30, 4500), *records])
    found = nanoflow_claims.claims(rows, Ceilings(rows))
    return {c.id: (c.verdict()[1], [p.holds for p in c.parts]) for c in found}


class Claims(TestCase):
    def test_nothing_is_judged_without_rows(self):
        for verdict, holds in judge().values():
            self.assertEqual(verdict, "not measured")
            self.assertEqual(set(holds), {None})

    def test_the_engine(self):
        found = judge(engine(), engine("_kv_fp8", 49.9))
        self.assertEqual(found["NF-1"][1], [True])
        self.assertEqual(found["NF-3"][1], [True])
        self.assertEqual(found["NF-6"][1], [True, False])
        self.assertEqual(found["NF-12"][1], [False, None])
        self.assertEqual(judge(engine(pct=40), engine("_nano", 68.5))["NF-12"][1], [True, True])
        self.assertEqual(judge(engine(pct=101))["NF-3"][1], [False])
        self.assertEqual(judge(engine(gpu="another"))["NF-1"][1], [None])

    def test_the_cost_model(self):
        small, prompts = alone("qkv_m512", tflops=1), alone("pre_m2048_kv1024", tflops=1, gbps=1)
        good = judge(engine(), alone("qkv_m1024", tflops=624), alone("dec_b96_kv1024", tflops=1, gbps=3600), small, prompts)
        self.assertEqual(good["NF-2"][1], [True, True])
        bad = judge(engine(), alone("qkv_m1024", tflops=623), alone("dec_b96_kv1024", tflops=1, gbps=3599))
        self.assertEqual(bad["NF-2"][1], [False, False])

    def test_pairs_of_one_case_are_kept_apart(self):
        self.assertEqual(judge(pair(0.8, 0.3), pair(0.6, 0.8, sms=80))["NF-4"][1], [True, True, True])
        self.assertEqual(judge(pair(0.79, 0.9), pair(0.6, 0.1, sms=80))["NF-4"][1], [False, True, True])
        self.assertEqual(judge(pair(0.5, 0.5), pair(0.5, 0.55, "streams"))["NF-4"][1], [False, False, False])

    def test_minutes(self):
        self.assertEqual(judge(search(200), search(230))["NF-5"][1], [True])
        self.assertEqual(judge(search(200), search(231))["NF-5"][1], [False])

    def test_plans_count_although_a_host_made_them(self):
        one = recording([moved("stream", "read_1g", 1 << 30, 4500), search(200) | {"driver": ""}])
        self.assertEqual([r.op for r in cards.judged(one, [one])], ["stream", "search"])

    def test_latency(self):
        self.assertEqual(judge(raw("serve", "llama3_8b_online80", p99_over_mean=1.07))["NF-7"][1], [True])
        self.assertEqual(judge(raw("serve", "llama3_8b_online80", p99_over_mean=1.08))["NF-7"][1], [False])

    def test_ablation(self):
        ways = way("sequential", 100), way("split", 113), way("streams", 95), way("plan", 93)
        self.assertEqual(judge(*ways)["NF-8"][1], [True, True])
        self.assertEqual(judge(way("sequential", 100), way("split", 101), way("plan", 94))["NF-8"][1], [False, False])
        self.assertEqual(judge(way("split", 113), way("plan", 93))["NF-8"][1], [None, None])


class Section(TestCase):
    def test_page(self):
        rows = engine(), alone("gate_up_m1024"), pair(0.8, 0.3), search(20), way("sequential", 100), way("plan", 98)
        text = page_of([moved("stream", "read_1g", 1 << 30, 4500), *rows])
        for part in ("Overlap inside one GPU", "SMs of their own", "gate_up_m1024", "Plans of the search", "1.020"):
            self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
