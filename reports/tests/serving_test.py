#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the section on serving on synthetic records: python3 reports/tests/serving_test.py"""

import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from sections import serving_section, timeline_drawing  # noqa: E402
from tests.samples import TestCase, page_of, raw, rows_of  # noqa: E402

LOAD = {"tokens_per_s": 30000, "new_per_s": 10000, "step_ms": 30.5, "rows": 1024}


def serving(share=61.0, host_us=30.0, reached=True):
    """Rows of a run; with the default arguments every target is reached."""
    return [
        raw("throughput", "llama3_8b_1024_512", **LOAD, optimal_pct=share, host_us=1700, idle_pct=0.003),
        raw("throughput", "llama3_8b_1024_512_gemm", ms=19.5, rows=1024, decode_rows=340),
        raw("throughput", "decode_256", host_us=host_us, idle_pct=0.06, step_ms=2.2),
        raw("serve", "llama3_8b_online80", reached=reached, p99_over_mean=1.4, ttft_p50_ns=9e7, tpot_mean_ns=2e7),
        raw("serve", "llama3_8b_batch1", reached=reached, over_bare=1.02, ttft_p50_ns=1e7, tpot_mean_ns=3.5e6),
        raw("serve", "llama3_8b_prefix8k", reached=reached, hit_over_miss=0.04),
        raw("serve", "embedded_connections", "cpu", reached=reached, answered=5000, seconds=600, front_grown_bytes=0),
        raw("serve", "llama32_1b_kill9", reached=reached, sent=900),
        raw("scheduler", "decode_256", "host", batch=256, rows=256, median_ns=9000, p99_ns=20000),
        raw(
            "kv_waste", "waste_page16", "host",
            sharegpt_waste=0.017, alpaca_waste=0.07, sharegpt_reserved=0.8, alpaca_reserved=0.95,
        ),
        raw("scheduler_claims", "longest_prefix_first", "host", longest_hits=0.9, arrival_hits=0.33),
        raw("kv_move_link", "copy_engine_in", "copy", ns=2000, bytes=110000),
        raw("kv_move_link", "host_in_ctas16", ns=2200, bytes=110000),
        raw("kv_move_link", "pages_in_llama3_8b_page16", "pieces", ns=20000, bytes=110000),
        raw("scheduler_claims", "late_ends", "host", dropped_share=0.0033),
        raw(
            "speculation", "llama3_8b_speculation", plain_ms=3.5, rows8_ms=4.0, rows8=1.143, rows16_ms=4.4, rows16=1.257,
            tree16_ms=4.5, tree16=1.286, forced_ms=1.4, forced=2.5, none_right_ms=3.55, none_right=0.986,
        ),
        raw("speculation", "llama3_8b_speculation_ops_8", gemm_ms=4.1, attn_ms=0.4, other_ms=0.8),
    ]  # fmt: skip


def timeline(steps=16, gap=1.25):
    """A timeline in which the host works 30.5 us per step, and passes take 2 ms."""
    hosts, devices, at, begin = [], [], 0.0, -1900.0
    for _ in range(steps):
        end = begin + 2000
        hosts.append([at, 3.5, 22.0, end - at - 25.5, 5.0])
        devices.append([begin, end])
        at, begin = end + 5, end + gap
    return raw("throughput", "decode_256_timeline", host_us=hosts, device_us=devices)


def verdicts(records):
    return [t.reached for t in serving_section.targets(rows_of(records))]


class Serving(TestCase):
    def test_all_reached(self):
        self.assertEqual(verdicts(serving()), [True] * 7)

    def test_none_reached(self):
        self.assertEqual(verdicts(serving(share=49.9, host_us=100.0, reached=False)), [False] * 7)

    def test_nothing_measured(self):
        self.assertEqual(verdicts([]), [None] * 7)

    def test_a_row_that_failed_is_none(self):
        records = [r | {"ok": False} for r in serving()]
        self.assertEqual(verdicts(records), [None] * 7)

    def test_gpu_before_processor(self):
        records = [raw("serve", "embedded_batch1", "cpu", reached=False, over_bare=2.5), *serving()]
        self.assertEqual(verdicts(records), [True] * 7)

    def test_page(self):
        page = page_of(serving())
        for text in ("Serving", "61.0%", "llama3_8b_online80", "19.50", "90.0%", "1.7%", "one launch, 16 CTAs", "55.0",
                     "one copy for each page, layer and side (K or V)", "5.5", "8 rows verified", "1.14", "2.50"):  # fmt: skip
            self.has(page, text)
        self.has(page, "Other operations", False)

    def test_each_operation_of_the_processor_from_the_recording_if_not_here(self):
        waste = {"driver": "", "gpu": "a CPU"}
        recorded = [r | waste for r in serving() if r["op"] in ("kv_waste", "scheduler")]
        measured = [raw("scheduler", "decode_256", "host", batch=256, rows=256, median_ns=7000, p99_ns=20000) | waste]
        page = page_of(measured, recorded)
        for text, there in (("1.7%", True), (">7.0<", True), (">9.0<", False)):
            self.has(page, text, there)

    def test_a_row_with_few_members(self):
        page = page_of([raw("throughput", "llama3_8b_keep", tokens_per_s=30000)])
        self.has(page, "llama3_8b_keep")

    def test_empty_page(self):
        self.assertIn("tools/serve_figures.py", page_of([raw("rmsnorm", "rows1_dim4096_f16")]))


class Timeline(TestCase):
    def test_drawn(self):
        text = self.check_html(page_of([timeline()]))
        self.assertEqual(text.count("<svg"), 1)
        for part in ("the last 16 steps of decode_256", "is 1.2 µs", "the host works 30.5 µs per step", "enlarged: around the end of a pass"):
            self.has(text, part)
        self.has(self.check_html(page_of([timeline(gap=55.0)])), "is 55.0 µs")

    def test_everything_lies_within(self):
        drawing = timeline_drawing.svg(timeline_drawing.steps(rows_of([timeline()]).all[0]))
        bars = re.findall(r'<rect x="([-\d.]+)" y="[\d.]+" width="([-\d.]+)"', drawing)
        self.assertGreater(len(bars), 16 * 5)
        for x, width in bars:
            self.assertTrue(float(x) >= 0 and float(width) > 0 and float(x) + float(width) <= timeline_drawing.WIDTH)

    def test_round_times(self):
        for low, high, wanted in (
            (-20, 60, range(-20, 61, 10)),
            (0, 7, range(8)),
            (13, 390, range(50, 351, 50)),
        ):
            self.assertEqual(timeline_drawing.round_times(low, high), list(wanted))

    def test_no_times_in_the_row(self):
        good = timeline()
        for bad in (
            {"host_us": None}, {"device_us": "?"}, {"host_us": [[1, 2]]}, {"device_us": good["device_us"][1:]},
            {"host_us": good["host_us"][:1], "device_us": good["device_us"][:1]}, {"host_us": [], "device_us": []},
            {"device_us": [[5, 5]] * 16}, {"ok": False},
        ):  # fmt: skip
            self.assertEqual(self.check_html(page_of([good | bad])).count("<svg"), 0, bad)


if __name__ == "__main__":
    unittest.main()
