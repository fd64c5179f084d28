#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the section on RDMA on synthetic records: python3 reports/tests/rdma_test.py"""

import os
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from base import plots  # noqa: E402
from claims import rdma_claims  # noqa: E402
from tests.samples import TestCase, claims_of, machine, page_of, raw, rows_of, targets_of  # noqa: E402


def host(op, case, impl, **members):
    return {"v": 1, "op": op, "case": case, "impl": impl, "ok": True, "gpu": "a CPU", "driver": "", **members}


def rdma(post=900, save=0.6, put=1100, engine=396.0, share=0.97, nccl=3000, nccl_gbps=300.0, rules=0, requests=10**7):
    """Rows of a run; with the default arguments every target is reached."""
    out = []
    for ring, factor in (("gpu", 1), ("host", 2)):
        for bell in ("bell8", "blueflame"):
            out.append(
                raw(
                    "fhbn",
                    f"post_64_bytes_signal_{ring}_ring_{bell}",
                    "fhbn",
                    post * factor,
                    median_cycles=1980 * post * factor / 1000,
                    form_cycles=300,
                    fence_cycles=600,
                    record_cycles=100,
                    register_cycles=500,
                )
            )
    out.append(raw("fhbn", "post_64_bytes_signal_gpu_ring_bell8", "gpunetio", 2 * post, median_cycles=4000))
    for memory in ("gpu", "host"):
        for size in (64, 4096, 65536):
            case = f"model_loopback_{size}_bytes_{memory}_memory"
            out.append(raw("fhbn", case, "host_path", 20000, bytes=size))
            out.append(raw("fhbn", case, "fhbn", 20000 * (1 - save), bytes=size))
            out.append(raw("fhbn", case, "cpu_to_cpu", 1234, bytes=size))
    out.append(raw("fhbn", "flag_round_trip_host_memory", "fhbn", 2900))
    out.append(raw("transport", "put_latency_8", "flag", 700, gpus=2, bytes=8))
    for size in (8, 64, 1024, 1 << 20):
        out.append(raw("transport", f"put_latency_{size}", "nvlink", put + size / 300, gpus=2, bytes=size))
        out.append(raw("transport", f"put_latency_{size}", "nccl", nccl + size / 300, gpus=2, bytes=size))
        out.append(raw("transport", f"put_latency_{size}", "nccl_device", 700, gpus=2, bytes=size))
        out.append(host("transport", f"host_put_latency_{size}", "loop", median_ns=815, bytes=size))
        out.append(raw("transport", f"host_put_latency_{size}", "nvlink", 51000, bytes=size))
    for size in (1 << 20, 64 << 20):
        for impl, speed in (("nvlink", engine * share), ("copy_engine", engine), ("nccl", nccl_gbps)):
            out.append(raw("transport", f"put_bandwidth_{size}", impl, size / speed, gpus=2, bytes=size))
    out += [
        host("nic", "golden", "model", requests=1000000, differ=0, wraps=25, rules=0),
        host("nic", "mutants_entries", "model", caught=46, planted=46),
        host("nic", "mutants_producers", "model", caught=31, planted=31),
        host("nic", "semantics", "model", lines=43, as_on_file=43),
        host("nic", "stock_ib_write_bw", "model", requests=requests, doorbells=200000, rules=rules),
        host("rxe", "semantics", "rxe", lines=43, listed_differences=7, other_differences=0, kernel="6.1.0-56-amd64"),
    ]
    return out


def figures(records):
    return [t.reached for t in rdma_claims.targets(rows_of(records))]


class Claim(TestCase):
    def test_a_network_is_never_claimed(self):
        claim = claims_of(rdma())["LA-4"]
        self.assertEqual(claim.verdict(), ("none", "not measured"))
        self.assertEqual([p.holds for p in claim.parts], [None, None, True, True, True, True, True])
        self.assertIn("No RDMA card was available", claim.method)

    def test_what_was_measured_can_refute(self):
        for bad, at in (({"nccl": 2000}, 2), ({"share": 0.9}, 3), ({"nccl_gbps": 390.0}, 4), ({"save": 0.49}, 5)):
            claim = claims_of(rdma(**bad))["LA-4"]
            self.assertEqual(claim.verdict()[1], "refuted in part", bad)
            self.assertIs(claim.parts[at].holds, False, bad)
            self.assertTrue(claim.parts[at].why, bad)

    def test_without_rows(self):
        claim = claims_of([])["LA-4"]
        self.assertEqual(claim.verdict()[1], "not measured")
        self.assertTrue(all(p.holds is None and p.needs for p in claim.parts))

    def test_one_gpu_is_no_link(self):
        rows = [{**r, "case": "one_gpu_" + r["case"]} if r["op"] == "transport" else r for r in rdma()]
        self.assertEqual([p.holds for p in claims_of(rows)["LA-4"].parts[2:5]], [None] * 3)
        self.assertEqual(figures(rows)[4:6], [None, None])


class Figures(TestCase):
    def test_reached_and_missing(self):
        self.assertEqual(figures(rdma()), [True] * 7)
        self.assertEqual(figures([]), [None] * 7)

    def test_each_at_its_limit(self):
        for at, good, bad in (
            (0, {"post": 999}, {"post": 1000}),
            (1, {"post": 999}, {"post": 1000}),
            (2, {"save": 0.5}, {"save": 0.499}),
            (4, {"put": 1599}, {"put": 1600}),
            (5, {"share": 0.95}, {"share": 0.9499}),
            (6, {"requests": 10**7}, {"requests": 10**7 - 1}),
            (6, {"rules": 0}, {"rules": 1}),
        ):
            self.assertIs(figures(rdma(**good))[at], True, good)
            self.assertIs(figures(rdma(**bad))[at], False, bad)

    def test_they_are_among_the_projects_own(self):
        self.assertIn("model card under the stock ib_write_bw", targets_of(rdma()))


class Section(TestCase):
    def test_whole(self):
        text = self.check_html(page_of(machine() + rdma()))
        for part in (
            "GPU-initiated RDMA",
            "gpu_ring_blueflame",
            "gpunetio",
            "Measured at one size only: flag 0.70 µs at 8 B.",
            "1.23",
            "Puts by the host in one process, one way, µs (a CPU)",
            "60%",
            "over NVLink between two GPUs",
            "77 of 77 caught, of 2 kinds",
            "7 differ as listed, 0 otherwise; Linux 6.1.0-56-amd64",
            "ib_write_bw: 10\u202f000\u202f000 requests, 0 rules",
            "has not been run",
            "LA-4",
        ):
            self.has(text, part)
        self.has(text, "Other operations", False)

    def test_without_rows_it_says_so(self):
        text = self.check_html(page_of(machine()))
        for part in ("fhbn post_*", "fhbn model_loopback_*", "transport put_latency_*", "results of the ladder"):
            self.has(text, part)
        self.has(text, "has not been run")

    def test_without_any_one_row_the_page_comes(self):
        for i in range(len(rdma())):
            self.check_html(page_of(rdma()[:i] + rdma()[i + 1 :]))
        self.check_html(page_of([{k: r[k] for k in ("op", "case", "impl", "driver")} for r in rdma()]))

    def test_one_gpu_is_said(self):
        rows = [{**r, "case": "one_gpu_" + r["case"]} if r["op"] == "transport" else r for r in rdma()]
        self.has(self.check_html(page_of(rows)), "no figure of a link")

    def test_counts_of_the_recording_stand_in(self):
        text = self.check_html(page_of([raw("stream", "read_1g")], rdma()))
        self.has(text, "77 of 77 caught")
        fewer = [r for r in rdma() if r["case"] != "mutants_entries"]
        text = self.check_html(page_of(fewer, rdma()))
        self.has(text, "31 of 31 caught, of 1 kinds")

    def test_markup_in_records_stays_text(self):
        evil = '<script>"'
        rows = [{**r, "kernel": evil, "impl": r["impl"] + evil} for r in rdma()]
        text = self.check_html(page_of(rows))
        self.has(text, "<script", False)

    def test_drawn(self):
        try:
            import matplotlib.pyplot
        except ImportError:
            self.skipTest("no matplotlib")
        with mock.patch.object(plots, "plt", matplotlib.pyplot):
            text = self.check_html(page_of(rdma()))
            self.assertEqual(text.count("<svg"), text.count("<figure>"))


if __name__ == "__main__":
    unittest.main()
