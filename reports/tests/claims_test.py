#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the verdicts on synthetic records: python3 reports/tests/claims_test.py"""

import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from base import views  # noqa: E402
from tests.samples import CLAIMS, TestCase, claims_of, fused, machine, raw, rows_of, targets_of  # noqa: E402


class Verdicts(TestCase):
    def verdicts(self, records):
        return {name: c.verdict()[1] for name, c in claims_of(records).items()}

    def test_all_reproduced(self):
        self.assertEqual(
            {k: v for k, v in self.verdicts(machine()).items() if k in CLAIMS[:5]},
            dict.fromkeys(CLAIMS[:5], "reproduced"),
        )

    def test_all_missing(self):
        self.assertEqual(
            self.verdicts([]), dict.fromkeys(CLAIMS, "not measured")
        )
        for claim in claims_of([]).values():
            self.assertTrue(claim.parts)
            self.assertTrue(all(p.needs for p in claim.lacking()), claim.id)

    def test_cf_1(self):
        for latency, verdict in (
            (171, "reproduced"),
            (209, "reproduced"),
            (170, "refuted in part"),
            (210, "refuted in part"),
        ):
            self.assertEqual(self.verdicts(machine(latency=latency))["CF-1"], verdict, latency)
        self.assertEqual(self.verdicts(machine(hbm=470))["CF-1"], "refuted in part")
        self.assertEqual(self.verdicts(machine(hbm=471))["CF-1"], "reproduced")
        self.assertEqual(self.verdicts(machine(latency=300, hbm=400))["CF-1"], "refuted")
        without = [r for r in machine() if r["case"] != "latency_hbm"]
        self.assertEqual(self.verdicts(without)["CF-1"], "not measured")

    def test_a_part_that_fails_outweighs_one_that_is_missing(self):
        records = [r for r in machine(latency=250) if r["case"] != "latency_hbm"]
        self.assertEqual(self.verdicts(records)["CF-1"], "refuted in part")

    def test_cf_2(self):
        h200 = claims_of(machine(loads=(4090, 3010, 3540, 3200), read=4580))["CF-2"]
        self.assertEqual(h200.verdict(), ("bad", "refuted in part"))
        self.assertEqual([p.holds for p in h200.parts], [False, True, False])
        self.assertIn("3.54 at 8 after 3.01 at 4", h200.parts[0].why)
        self.assertIn("70%", h200.parts[2].here)
        self.assertEqual(self.verdicts(machine(read=2900))["CF-2"], "reproduced")
        self.assertEqual(self.verdicts(machine(read=2899))["CF-2"], "refuted in part")
        self.assertEqual(self.verdicts(machine(read=2900 / 0.899))["CF-2"], "refuted in part")
        self.assertEqual(self.verdicts(machine(loads=(2900, 2950, 2900, 2899)))["CF-2"], "reproduced")
        self.assertEqual(self.verdicts(machine(loads=(2900, 2960, 2900, 2899)))["CF-2"], "refuted in part")
        self.assertEqual(self.verdicts(machine(loads=(2000, 2100, 2500, 2600)))["CF-2"], "refuted")

    def test_cf_3(self):
        self.assertEqual(self.verdicts(machine(active=(132, 132, 132, 132, 132)))["CF-3"], "refuted in part")
        self.assertEqual(self.verdicts(machine(active=(132, 120, 124, 120, 112)))["CF-3"], "refuted in part")
        records = machine()
        next(r for r in records if r["case"] == "active_size8")["asked_sms"] = 128
        self.assertEqual(self.verdicts(records)["CF-3"], "refuted in part")
        self.assertIn("120 seen, 128 granted at 8", claims_of(records)["CF-3"].parts[1].why)

    def test_cf_4(self):
        self.assertEqual(self.verdicts(machine(gain=1))["CF-4"], "refuted")
        one = machine()
        next(r for r in one if r["case"] == "size8_len64_f32_sum_offchip")["cycles"] = 1000
        claim = claims_of(one)["CF-4"]
        self.assertEqual(claim.verdict()[1], "refuted in part")
        self.assertEqual([p.holds for p in claim.parts], [False, False, True, True])
        self.assertIn("at cluster 8, 256 B", claim.parts[0].why)
        without = [r for r in machine() if not r["case"].endswith("offchip")]
        self.assertEqual(self.verdicts(without)["CF-4"], "not measured")

    def test_cf_5(self):
        self.assertEqual(self.verdicts(machine(extra_bytes=1))["CF-5"], "refuted")
        one = machine()
        next(r for r in one if r["case"] == "size16_len64_f32_tree")["dsmem_bytes"] -= 16
        self.assertEqual(self.verdicts(one)["CF-5"], "refuted in part")
        self.assertEqual(views.paper_traffic("reduce", 256, 8), 256 * 8 * 3)
        self.assertEqual(views.paper_traffic("gather", 256, 8), 256 * 8 * 7)

    def test_rows_of_the_host_decide_nothing(self):
        records = [{**r, "impl": "cpu", "driver": ""} for r in machine()]
        self.assertEqual(set(self.verdicts(records).values()), {"not measured"})

    def test_fused_claims_both_ways(self):
        good, bad = self.verdicts(fused(True)), self.verdicts(fused(False))
        for name in CLAIMS[5:13]:
            self.assertEqual(good[name], "reproduced", name)
            self.assertTrue(bad[name].startswith("refuted"), name)

    def test_what_a_pure_read_would_gain(self):
        reads = [raw("stream", f"read_{n}m", ns=10e3 + 20e3 * n / 100, bytes=n << 20) for n in (100, 200)]
        for num_bytes, took in ((100 << 20, 30e3), (150 << 20, 40e3), (200 << 20, 50e3), (300 << 20, 70e3)):
            rows = rows_of(reads + [raw("cluster_attn", "x", ns=45e3, bytes=num_bytes)])
            self.assertAlmostEqual(views.pure_read_ns(rows, num_bytes), took)
        for few in (rows_of(reads[:1]), rows_of([])):
            self.assertIsNone(views.pure_read_ns(few, 150 << 20))
        self.assertIsNone(views.pure_read_ns(rows_of(reads), 99 << 20))
        self.assertIsNone(views.pure_read_ns(rows_of(reads), None))
        # 150 MiB at 1K only: a pure read takes 40 us; a chain of 50 us allows a gain of 1.25, one of 70 us 1.75
        for chain, out_of_reach in ((50e3, True), (70e3, False)):
            records = reads + [
                raw("cluster_attn", "llama2_7b_b1_kv1024", ns=45e3, bytes=150 << 20),
                raw("cluster_attn", "llama2_7b_b1_kv1024", "unfused", chain),
            ]
            part = claims_of(records)["CF-6"].parts[0]
            self.assertIs(part.holds, False)
            self.assertIn(f"would gain {chain / 40e3:.2f} at 1K", part.why)
            self.assertIs("out of reach" in part.why, out_of_reach)
            target = targets_of(records)["against unfused, llama2_7b_b1_kv1024"]
            self.assertIs(target.reached, not out_of_reach)
            self.assertEqual(f"a pure read of its bytes: {chain / 40e3:.2f}" in target.here, out_of_reach)

    def test_cf_9_is_of_counters(self):
        self.assertEqual([p.holds for p in claims_of(fused(True))["CF-9"].parts], [True] * 5)
        self.assertEqual([p.holds for p in claims_of(fused(False))["CF-9"].parts], [False] * 5)
        some = [r for r in fused(True) if r["case"] != "cluster_mla_dsv2lite_b1_kv1024" or r["impl"] != "unfused"]
        self.assertEqual([p.holds for p in claims_of(some)["CF-9"].parts], [True, True, None, None, True])
        self.assertIn("16 by unfused, 2 fused", claims_of(fused(True))["CF-9"].parts[0].here)

    def test_fused_figures_both_ways(self):
        for holds in (True, False):
            found = targets_of(fused(holds))
            self.assertIs(found["fused module, llama2_7b_b1_kv1024"].reached, holds)
            self.assertIs(found["against unfused, llama2_7b_b1_kv1024"].reached, holds)
            self.assertIs(found["time per token, llama2_7b_b1_kv1024"].reached, holds)

    def test_targets_both_ways(self):
        self.assertTrue(all(t.reached is None and t.needs for t in targets_of([]).values()))
        good = targets_of(machine(on=500, read=4600))
        self.assertEqual(
            {t.what: t.reached for t in good.values() if not t.reached and t.reached is not None}, {}
        )
        bad = targets_of(machine(on=1300, read=4400))
        for what in ("all-reduce of 256 B, cluster 2", "all-reduce of 256 B, cluster 16", "read stream"):
            self.assertIs(good[what].reached, True, what)
            self.assertIs(bad[what].reached, False, what)

    def test_targets_at_the_limit(self):
        def one(op, case, **more):
            return targets_of([raw(op, case, **more)])

        case = "size2_len64_f32_sum_oneshot"
        self.assertIs(one("cluster_reduce", case, cycles=699)["all-reduce of 256 B, cluster 2"].reached, True)
        self.assertIs(
            one("cluster_reduce", case, cycles=700)["all-reduce of 256 B, cluster 2"].reached, False
        )
        self.assertIs(
            one("cluster_reduce", case.replace("oneshot", "offchip"), cycles=9)[
                "all-reduce of 256 B, cluster 2"
            ].reached,
            None,
        )
        self.assertIs(one("stream", "read_1g", gbps=4500.0)["read stream"].reached, True)
        self.assertIs(one("stream", "read_1g", gbps=4499.9)["read stream"].reached, False)
        for case, ns, reached in (
            ("rows128_dim14336_bf16", 5950, True),
            ("rows128_dim14336_bf16", 5949, False),
            ("rows128_dim14336_f16", 5960, None),
        ):
            peer = raw("silu_mul", case, "flashinfer", ns=ns)
            found = targets_of([raw("silu_mul", "rows128_dim14336_bf16", ns=5950), peer])
            self.assertIs(found["silu-mul, 128 x (2 x 14336)"].reached, reached)
        generate = "generate, Llama-3-8B shape, batch 1"
        for gbps, reached in ((3150.0, True), (3149.0, False)):
            found = targets_of(
                [raw("stream", "read_1g", gbps=4500.0), raw("generate", "llama3_8b_b1_kv1024", gbps=gbps)]
            )
            self.assertIs(found[generate].reached, reached)
        self.assertIs(one("generate", "llama3_8b_b1_kv1024", gbps=1.0, roof_pct=71.0)[generate].reached, True)
        self.assertIs(one("generate", "llama2_7b_b1_kv1024", gbps=1.0, roof_pct=71.0)[generate].reached, None)

    def test_all_reduce_against_bandwidth(self):
        what = "all-reduce of 16 KiB, cluster 4, one cluster alone"
        for cycles, reached in ((1536, True), (1537, False)):
            found = targets_of(
                [
                    raw("dsmem", "bulk_size4", bytes_per_clk=24.0, tbps_kernel=3.0),
                    raw("cluster_reduce", "size4_len4096_f32_sum_twoshot", cycles=cycles, dsmem_bytes=98304),
                ]
            )
            self.assertIs(found[what].reached, reached)


class Listed(TestCase):
    def test_the_readme_lists_every_claim_and_which_the_report_decides(self):
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "README.md")
        with open(path, encoding="utf-8") as file:
            listed = dict(re.findall(r"^\| ([A-Z]{2}-\d+) \|.*\| (yes|no) \|$", file.read(), re.M))
        self.assertEqual(sorted(name for name, said in listed.items() if said == "yes"), sorted(claims_of([])))
        self.assertEqual(len(listed), 13 + 11 + 7 + 14 + 12)


if __name__ == "__main__":
    unittest.main()
