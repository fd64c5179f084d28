#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the report, on made-up records: python3 tools/report_test.py (seconds, no matplotlib)."""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from math import log2
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import compare  # noqa: E402
import readme_table  # noqa: E402
import report  # noqa: E402
import report_claims  # noqa: E402
import report_page  # noqa: E402
import report_plots  # noqa: E402
import report_views as views  # noqa: E402
from report_records import BadRecords, Ceilings, Rows, load, parse_line, split_case  # noqa: E402

SIZES = (2, 4, 8, 16)
CLAIMS = tuple(f"CF-{i}" for i in range(1, 14))
VOID = {"meta", "br", "hr", "img", "link", "input", "use", "path", "image"}


def raw(op, case, impl="cuda", ns=1000, **more):
    gpu = (
        {"gpu": "NVIDIA H200", "driver": "580.159", "sm_mhz": 1980}
        if impl != "cpu"
        else {"gpu": "a CPU", "driver": ""}
    )
    return {
        "v": 1,
        "op": op,
        "case": case,
        "impl": impl,
        "impl_version": "1",
        "ok": True,
        "n": 31,
        "min_ns": ns,
        "median_ns": ns,
        "p95_ns": ns * 1.02,
        "warm_ns": ns,
        "source": "0123",
        "seed": 1,
        **gpu,
        **more,
    }


def moved(op, case, num_bytes, gbps, impl="cuda", **more):
    return raw(op, case, impl, num_bytes / gbps, bytes=num_bytes, gbps=gbps, flops=0, tflops=0, **more)


def machine(
    latency=195,
    hbm=667,
    loads=(4090, 3900, 3500, 2900),
    read=3000,
    active=(132, 132, 120, 120, 112),
    on=650,
    gain=3,
    extra_bytes=0,
):
    """A whole set of records; as the arguments are by default, every claim holds."""
    out = [
        moved("stream", "read_32m", 32 << 20, 0.8 * read),
        moved("stream", "read_1g", 1 << 30, read),
        moved("stream", "write_1g", 1 << 30, 0.9 * read),
        moved("stream", "copy_1g", 2 << 30, 0.9 * read),
        raw(
            "gemm", "m8192_n8192_k8192_bf16", ns=1.5e6, flops=2 * 8192**3, tflops=733, bytes=3 << 27, gbps=268
        ),
        raw(
            "gemm", "m8192_n8192_k8192_bf16", "peers", ns=1.5e6, flops=2 * 8192**3, tflops=733, bytes=3 << 27
        ),
        moved("gemm", "m1_n4096_k4096_bf16", 1 << 25, 2500),
        moved("gemm", "m1_n4096_k4096_bf16", 1 << 25, 2000, "peers"),
    ]
    for level, cycles in (("smem", 29), ("l2", 292), ("hbm", hbm)):
        out.append(raw("dsmem", f"latency_{level}", cycles=cycles))
    pairs = [[a, b, 190 + abs(a - b)] for a in range(16) for b in range(16) if a != b]
    out.append(raw("dsmem", "latency_matrix_size16", cycles=200, matrix=pairs))
    for i, size in enumerate((1,) + SIZES):
        out.append(raw("dsmem", f"active_size{size}", active_sms=active[i], asked_sms=active[i]))
        out.append(raw("dsmem", f"barrier_size{size}", cycles=350, exchange_cycles=600))
        if size == 1:
            continue
        out.append(
            raw(
                "dsmem",
                f"latency_size{size}",
                cycles=latency,
                min_cycles=180,
                max_cycles=230,
                window_cycles=41,
            )
        )
        for test in ("load", "st_async", "bulk", "multicast"):
            out.append(
                raw(
                    "dsmem",
                    f"{test}_size{size}{'_all' * (test == 'load')}",
                    tbps_kernel=loads[i - 1] / 1000,
                    bytes_per_clk=16.0,
                )
            )
        out.append(raw("dsmem", f"mbarrier_size{size}", cycles=480, st_async_cycles=500))
        for length in (64, 4096):
            for algo in ("oneshot", "twoshot", "tree", "offchip"):
                cycles = (on + 4 * length * size // 64) * (gain if algo == "offchip" else 1)
                sent = (
                    4 * length * size * log2(size)
                    if algo == "tree"
                    else 0 if algo == "offchip" else 4 * length * size
                )
                out.append(
                    raw(
                        "cluster_reduce",
                        f"size{size}_len{length}_f32_sum_{algo}",
                        cycles=cycles,
                        dsmem_bytes=sent + extra_bytes,
                    )
                )
                if algo != "twoshot":
                    sent = 0 if algo == "offchip" else 4 * length * size * (size - 1)
                    out.append(
                        raw(
                            "cluster_gather",
                            f"size{size}_len{length}_f32_{algo}",
                            cycles=cycles,
                            dsmem_bytes=sent + extra_bytes,
                        )
                    )
    out += [
        moved("rmsnorm", "rows128_dim4096_bf16", 2 << 20, 1000),
        moved("silu_mul", "rows128_dim14336_bf16", 11 << 20, 2500),
        moved("rope", "rows128_heads32_8_dim128_bf16", 2 << 20, 1000),
        moved("argmax", "rows1_vocab128256_f32", 513024, 300),
        moved("attn_paged", "decode_h32_8_b64_kv4096_bf16", 1 << 30, 3100),
        moved("attn_paged", "decode_h32_8_b1_kv1024_bf16", 1 << 22, 800),
        moved("generate", "llama3_8b_b1_kv1024", 15e9, 0.75 * read, first_token_ns=3e7),
        moved("generate", "llama3_8b_b1_kv1024", 15e9, 0.7 * read, "cuda:unfused", first_token_ns=3e7),
        moved("decode_step", "llama3_8b_b1_kv1024", 13e9, 0.75 * read, peak_pct=70),
        moved("decode_step", "llama3_8b_b1_kv1024", 13e9, 0.5 * read, "cuda:unfused", peak_pct=46),
        moved("decode_step", "llama3_8b_b1_kv1024", 13e9, 0.74 * read, "cuda:graph"),
        moved("decode_step", "layer_llama3_8b_b1_kv1024_graph", 4e8, 0.7 * read),
    ]
    out += [moved("sample", f"rows{n}_vocab128256_topk50_topp90", n << 19, 50.0 * n) for n in (1, 64, 256)]
    return out


def fused(holds):
    """Rows of the fused operations by which CF-6 to CF-13 all hold, or all do not."""
    out = []

    def pair(op, case, ns, gain, other="unfused", **more):
        out.append(raw(op, case, ns=ns, launches=1, **more))
        out.append(raw(op, case, other, ns * gain, launches=300 if holds else 2))

    for kv in (1024, 2048, 4096, 8192, 16384):
        pair("cluster_attn", f"llama2_7b_b1_kv{kv}", 42000 if holds else 43000, 1.8 if holds else 1.1)
        pair("cluster_mla", f"dsv2lite_b1_kv{kv}", 2e4, 1.8 if holds else 1.1)
        pair("cluster_attn", f"llama2_7b_b16_kv{kv}", 1e5, 1.1 if holds else 0.9)
        pair("cluster_mla", f"dsv2lite_b16_kv{kv}", 1e5, 1.1 if holds else 0.9)
        for shape in ("llama2_7b", "dsv2lite"):
            pair("decode_step", f"{shape}_b1_kv{kv}", 3.5e6 if holds else 3.7e6, 1.5 if holds else 1.1, "cuda:unfused")
        head = (1.0 if kv == 1024 else 1.5) if holds else (1.5 if kv == 1024 else 1.0)
        if kv != 4096:
            out.append(raw("cluster_attn", f"llama2_7b_b1_kv{kv}_token_c4", ns=1000))
            out.append(raw("cluster_attn", f"llama2_7b_b1_kv{kv}_head_c4", ns=1000 * head))
    for n in SIZES:
        for flow in ("token", "head"):
            # 4096 keys, 32 heads, d 128, f16: gather 768, reduce 776 or 32768, times 32 (n - 1)
            sent = 32 * (n - 1) * (768 + (776 if flow == "token" else 32768)) + (not holds)
            case = f"llama2_7b_b1_kv4096_{flow}_c{n}"
            out.append(raw("cluster_attn", case, dsmem_model_bytes=sent))
            out.append(raw("cluster_attn", case + "_offchip", ns=1400 if holds else 900))
    for heads, best in ((32, 4), (64, 4), (128, 2)):
        for n in (1,) + SIZES:
            out.append(raw("cluster_attn", f"heads{heads}_b1_kv4096_token_c{n}", ns=900 if (n == best) == holds else 1000))
    out.append(raw("generate", "llama2_7b_b1_kv1024", ns=4e6, first_token_ns=2e7 if holds else 2e9))
    return out


def rows_of(records):
    return Rows(parse_line(json.dumps(r)) for r in records)


def claims_of(records):
    rows = rows_of(records)
    return {c.id: c for c in report_claims.claims(rows, Ceilings(rows))}


def targets_of(records):
    rows = rows_of(records)
    return {t.what: t for t in report_claims.targets(rows, Ceilings(rows))}


def page_of(measured, recorded=None):
    return report.build(
        rows_of(measured), None if recorded is None else rows_of(recorded), "reports/h200.jsonl"
    )


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.faults, self.ids = [], [], []

    def handle_starttag(self, name, attrs):
        self.ids += [v for k, v in attrs if k == "id"]
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attrs):
        self.ids += [v for k, v in attrs if k == "id"]

    def handle_endtag(self, name):
        if name in VOID:
            return
        if not self.open or self.open.pop() != name:
            self.faults.append(name)


class TestCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        patch = mock.patch.object(report_plots, "plt", None)
        patch.start()
        self.addCleanup(patch.stop)

    def path(self, name, content):
        path = os.path.join(self.dir.name, name)
        if isinstance(content, list):
            content = "".join(json.dumps(r) + "\n" for r in content)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def check_html(self, text):
        parser = Balance()
        parser.feed(text)
        self.assertEqual((parser.open, parser.faults), ([], []))
        self.assertEqual(len(parser.ids), len(set(parser.ids)))
        outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
        found = re.search(r'(?i)(?:src|href)="(?!#|data:)[^"]*|https?://.{40}|@import|url\((?!#)', outside)
        self.assertIsNone(found and found[0])
        return text

    def has(self, text, part, there=True):
        """assertIn without printing a whole page."""
        self.assertIs(part in text, there, part)

    def run_main(self, program, *args):
        """-> (exit status, stdout, stderr)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = program.main(list(args))
            except SystemExit as error:
                status = error.code
        return status, out.getvalue(), err.getvalue()


class Reading(TestCase):
    def test_malformed_lines_name_file_and_line(self):
        good = json.dumps(raw("stream", "read_1g"))
        for bad, part in (
            ("{", "Expecting"),
            ("[1]", "not a JSON object"),
            ("7", "not a JSON object"),
            ('"x"', "object"),
            ("not json", "Expecting"),
            (good + "}", "Extra data"),
            (good[:-9], ""),
            ('{"v":1}', "op: missing"),
            ('{"op":"a","case":"b"}', "impl: missing"),
            ('{"op":1,"case":"b","impl":"c"}', "op: missing or not a text"),
            ('{"op":"","case":"b","impl":"c"}', "op: missing"),
            ('{"v":2,"op":"a","case":"b","impl":"c"}', "v: version 2"),
            ('{"op":"a","case":"b","impl":"c","median_ns":"7"}', "median_ns: '7'"),
            ('{"op":"a","case":"b","impl":"c","median_ns":NaN}', "NaN is not a JSON number"),
            ('{"op":"a","case":"b","impl":"c","gbps":Infinity}', "Infinity"),
            ('{"op":"a","case":"b","impl":"c","gbps":1e999}', "gbps: inf"),
            ('{"op":"a","case":"b","impl":"c","gbps":true}', "gbps: True"),
            ('{"op":"a","case":"b","impl":"c","median_ns":0}', "median_ns: 0 is not above 0"),
            ('{"op":"a","case":"b","impl":"c","p95_ns":-1}', "p95_ns: -1"),
            ('{"op":"a","case":"b","impl":"c","gpu":7}', "gpu: 7 is not a text"),
            ("[" * 100000, ""),
        ):
            with self.subTest(bad=bad[:60]):
                path = self.path("x.jsonl", f"{good}\n\n{bad}\n{good}\n")
                with self.assertRaises(BadRecords) as caught:
                    load(path)
                self.assertIn(f"{path}:3: ", str(caught.exception))
                self.assertIn(part, str(caught.exception))
                self.assertNotIn("\n", str(caught.exception))

    def test_all_programs_exit_2_with_one_line(self):
        bad = self.path("bad.jsonl", "{}\n")
        good = self.path("good.jsonl", machine())
        readme = self.path("README.md", f"{readme_table.BEGIN}\n{readme_table.END}\n")
        out = os.path.join(self.dir.name, "out")
        for program, args in (
            (report, ("--measured", bad, "--out", out)),
            (report, ("--measured", good, "--recorded", bad, "--out", out)),
            (report, ("--measured", good + "x", "--out", out)),
            (compare, (bad, good)),
            (compare, (good, bad)),
            (readme_table, ("--recorded", bad, "--readme", readme)),
            (readme_table, ("--recorded", good, "--readme", readme + "x")),
        ):
            status, _, err = self.run_main(program, *args)
            self.assertEqual(status, 2, args)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertIn(self.dir.name, err)
        self.assertFalse(os.path.exists(out))

    def test_not_utf8_and_a_directory(self):
        for path in (self.path("x.jsonl", b'{"op":"\xff"}\n'), self.dir.name):
            with self.assertRaises(BadRecords) as caught:
                load(path)
            self.assertIn(path, str(caught.exception))

    def test_the_last_record_wins_in_the_first_ones_place(self):
        path = self.path(
            "x.jsonl",
            [raw("a", "x", ns=1), raw("b", "y", ns=2), raw("a", "x", ns=3), raw("a", "x", "peers", ns=4)],
        )
        self.assertEqual(
            [(r.op, r.impl, r.ns) for r in load(path)],
            [("a", "cuda", 3), ("b", "cuda", 2), ("a", "peers", 4)],
        )

    def test_unknown_keys_are_kept_and_an_empty_file_is_empty(self):
        self.assertEqual(
            load(self.path("x.jsonl", [raw("a", "x", novel=[1, {"k": 2}])])).all[0].get("novel"),
            [1, {"k": 2}],
        )
        self.assertEqual(len(load(self.path("y.jsonl", "\n\n"))), 0)

    def test_names_of_cases(self):
        self.assertEqual(
            split_case("size8_len4096_bf16_sum_oneshot"),
            ({"size": 8, "len": 4096}, ["bf16", "sum", "oneshot"]),
        )
        self.assertEqual(
            split_case("decode_h32_8_b1_kv1024_f16"),
            ({"h": 32, "h2": 8, "b": 1, "kv": 1024}, ["decode", "f16"]),
        )
        self.assertEqual(split_case("llama3_8b_b1_kv7"), ({"llama": 3, "b": 1, "kv": 7}, ["8b"]))
        self.assertEqual(split_case("a1_a2__"), ({"a": 1}, ["a2", "", ""]))

    def test_dsmem_rows_are_told_apart(self):
        rows = rows_of(machine() + [raw("dsmem", "load_size4_one", bytes_per_clk=99.0, tbps_kernel=0.1)])
        self.assertEqual(list(views.dsmem(rows, "latency")), list(SIZES))
        self.assertEqual(views.dsmem(rows, "load")[4].case, "load_size4_all")
        self.assertEqual(views.dsmem(rows, "load_one")[4].case, "load_size4_one")
        self.assertEqual(views.cluster_bytes_per_cycle(rows, 4), 64)
        self.assertEqual(views.cluster_bytes_per_cycle(rows, 4, alone=True), 4 * 99)

    def test_sms_are_grouped_by_who_met_whom(self):
        pairs = [[5, 1, 9], [1, 5, 8], [2, 7, 7], [7, 9, 6], "junk", [1, 2], [1, 2, None]]
        rows = rows_of([raw("dsmem", "latency_matrix_size2", matrix=pairs)])
        self.assertEqual(
            views.gpcs(rows),
            [
                ([1, 5], [[None, 8], [9, None]]),
                ([2, 7, 9], [[None, 7, None], [None, None, 6], [None, None, None]]),
            ],
        )


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
            self.verdicts([]), dict.fromkeys(CLAIMS, "not measurable here")
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
        self.assertEqual(self.verdicts(without)["CF-1"], "not measurable here")

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
        self.assertEqual(self.verdicts(without)["CF-4"], "not measurable here")

    def test_cf_5(self):
        self.assertEqual(self.verdicts(machine(extra_bytes=1))["CF-5"], "refuted")
        one = machine()
        next(r for r in one if r["case"] == "size16_len64_f32_tree")["dsmem_bytes"] -= 16
        self.assertEqual(self.verdicts(one)["CF-5"], "refuted in part")
        self.assertEqual(views.paper_traffic("reduce", 256, 8), 256 * 8 * 3)
        self.assertEqual(views.paper_traffic("gather", 256, 8), 256 * 8 * 7)

    def test_rows_of_the_host_decide_nothing(self):
        records = [{**r, "impl": "cpu", "driver": ""} for r in machine()]
        self.assertEqual(set(self.verdicts(records).values()), {"not measurable here"})

    def test_fused_claims_both_ways(self):
        good, bad = self.verdicts(fused(True)), self.verdicts(fused(False))
        for name in CLAIMS[5:]:
            self.assertEqual(good[name], "reproduced", name)
            self.assertTrue(bad[name].startswith("refuted"), name)

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
        self.assertIs(
            one("silu_mul", "rows128_dim14336_bf16", ns=5950)["silu-mul, 128 x (2 x 14336)"].reached, True
        )
        self.assertIs(
            one("silu_mul", "rows128_dim14336_bf16", ns=5960)["silu-mul, 128 x (2 x 14336)"].reached, False
        )
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


class Pages(TestCase):
    def test_whole_page(self):
        text = self.check_html(page_of(machine()))
        for part in ("Distributed shared memory", "3.00 TB/s", "CF-5", "Paged attention", "reproduced"):
            self.has(text, part)
        self.has(text, "No GPU was found", False)

    def test_forms_of_the_decode_step_beside_the_list(self):
        text = self.check_html(page_of(machine()))
        for part in ("The decode step", "cuda:graph", "1.50×", "70%", "One layer of a published model"):
            self.has(text, part)
        alone = [r for r in machine() if r["op"] != "decode_step" or r["impl"] == "cuda:graph"]
        self.check_html(page_of(alone))

    def test_fused_section(self):
        text = self.check_html(page_of(machine() + fused(True)))
        for part in ("Fused cluster attention", "figure 11", "figure 13", "figure 20", "SPLIT_HEAD", "CF-12"):
            self.has(text, part)
        self.check_html(page_of([r for r in fused(False) if r["op"] == "cluster_mla"]))

    def test_no_rows_at_all(self):
        text = self.check_html(page_of([]))
        self.has(text, "there is no recording")
        for row in ("read_*", "latency_size2", "active_size*", "rows of gemm", "rows of generate"):
            self.has(text, row)

    def test_without_any_one_operation_the_page_says_so(self):
        for op in sorted({r["op"] for r in machine()}):
            text = self.check_html(page_of([r for r in machine() if r["op"] != op]))
            self.has(text, "Not in the records")

    def test_without_any_one_case_the_page_comes(self):
        for case in sorted({r["case"] for r in machine() if r["op"] in ("dsmem", "stream", "gemm")}):
            page_of([r for r in machine() if r["case"] != case])

    def test_rows_without_numbers(self):
        self.check_html(page_of([{k: r[k] for k in ("op", "case", "impl", "driver")} for r in machine()]))
        self.check_html(page_of([{**r, "cycles": None, "matrix": {}, "gbps": 0} for r in machine()]))

    def test_no_gpu_shows_the_recording_and_says_so(self):
        host = [
            moved("stream", "read_128m", 1 << 27, 12, "cpu"),
            moved("rmsnorm", "rows1_dim4096_bf16", 16384, 9, "cpu"),
        ]
        text = self.check_html(page_of(host, machine()))
        self.has(text, "No GPU was found on this machine")
        self.has(text, "recorded in <code>reports/h200.jsonl</code>")
        self.has(text, "a CPU")
        self.has(text, "3.00 TB/s")
        text = self.check_html(page_of(host, None))
        self.has(text, "there is no recording of one")

    def test_a_gpu_is_compared_with_the_recording(self):
        slow = [
            (
                {**r, "median_ns": r["median_ns"] * 1.5, "p95_ns": r["median_ns"] * 1.5}
                if r["op"] == "rope"
                else r
            )
            for r in machine()
        ]
        text = self.check_html(page_of(slow, machine()))
        self.has(text, "+50%")
        self.has(text, "No GPU was found", False)

    def test_unknown_operations_and_wrong_rows_are_shown(self):
        text = page_of(
            machine() + [moved("novelty", "case_of_it", 1 << 20, 100), raw("rope", "rows9_wrong", ok=False)]
        )
        self.has(text, "case_of_it")
        self.has(text, "rows whose result was wrong")

    def test_markup_in_records_stays_text(self):
        evil = '<script>alert("1")</script>&"\''
        records = machine() + [
            moved(f"op{evil}", f"case{evil}", 1 << 20, 100),
            moved("rmsnorm", f"c{evil}", 1 << 20, 9),
            moved("rmsnorm", f"c{evil}", 1 << 20, 10, f"impl{evil}"),
            moved("gemm", f"g{evil}", 9, 9),
            moved("generate", f"gen{evil}", 9, 9),
            moved("attn_paged", f"decode_{evil}", 9, 9),
            moved("argmax", f"v{evil}", 9, 9, f"vendor{evil}"),
            raw("rope", f"w{evil}", ok=False),
        ]
        for key in ("gpu", "driver", "source", "impl_version"):
            records.append({**raw("stream", f"read_{key}"), key: evil})
        host = [{**moved("stream", f"read_{evil}", 9, 9, "cpu"), "gpu": evil}]
        for text in (page_of(records + host), page_of(host, records), page_of(records, records)):
            self.check_html(text)
            self.has(text, "<script", False)
            self.has(text, "&lt;script&gt;")

    def test_equal_records_give_equal_bytes(self):
        self.assertTrue(page_of(machine()) == page_of(machine()))
        self.assertTrue(page_of([], machine()) == page_of([], machine()))

    def test_the_program_writes_the_file(self):
        measured, out = self.path("m.jsonl", machine()), os.path.join(self.dir.name, "a/b")
        status, _, err = self.run_main(
            report, "--measured", measured, "--recorded", measured + "x", "--out", out
        )
        self.assertEqual(status, 0, err)
        self.assertIn("not there", err)
        with open(os.path.join(out, "index.html"), encoding="utf-8") as file:
            self.check_html(file.read())
        status, _, err = self.run_main(report, "--measured", measured, "--out", measured)
        self.assertEqual((status, err.count("\n")), (2, 1))

    def test_numbers(self):
        for value, text in (
            (None, report_page.DASH),
            (0, "0"),
            (7, "7"),
            (1234.0, "1234"),
            (0.1234, "0.123"),
            (12.34, "12.3"),
            (1234.4, "1234"),
            (0.00001234, "1.23e-05"),
            (99999.5, "100\u202f000"),
            (12345, "12\u202f345"),
        ):
            self.assertEqual(report_page.num(value), text)
        self.assertEqual(
            [report_page.percent(x) for x in (None, 0.7, 0.096, 0.05)],
            [report_page.DASH, "70%", "10%", "5.0%"],
        )
        self.assertEqual([report_page.us(x) for x in (1234, 123456, 1234567)], ["1.23", "123.5", "1235"])


class Plots(TestCase):
    """The page with drawings, where matplotlib is."""

    def setUp(self):
        super().setUp()
        try:
            import matplotlib.pyplot
        except ImportError:
            self.skipTest("no matplotlib")
        patch = mock.patch.object(report_plots, "plt", matplotlib.pyplot)
        patch.start()
        self.addCleanup(patch.stop)

    def test_whole_page_twice(self):
        text = self.check_html(page_of(machine()))
        self.assertEqual(text.count("<svg"), text.count("<figure>"))
        self.assertTrue(text == page_of(machine()))

    def test_markup_reaches_no_drawing(self):
        text = self.check_html(
            page_of(
                [
                    moved("gemm", "<b>&amp;$x$", 1 << 20, 9),
                    moved("generate", "<b>$\\bad{", 9, 9),
                    raw("stream", "read_1g", gbps=4000.0),
                ]
            )
        )
        self.has(text, "<b>&amp;$x", False)

    def test_series_of_one_point_or_one_value(self):
        plots = report_plots
        for drawing in (
            plots.lines([("a", [(1, 1)])], "x", "y", references=[(2, "b")]),
            plots.panels([("a", [("b", [(8, 3)])])], "x", "y"),
            plots.bars([("a", 1, "k")], "x"),
            plots.columns(["a"], [("b", [None]), ("c", [1])], "x", "y"),
            plots.heat([("a", ["1", "2"], [[None, 7], [7, None]])], "u", "x", "y"),
        ):
            self.assertTrue(drawing.startswith("<?xml"))


class Comparing(TestCase):
    def status(self, old, new, *args):
        return self.run_main(compare, self.path("old.jsonl", old), self.path("new.jsonl", new), *args)

    def test_noise_is_twice_the_larger_spread(self):
        def one(ns, p95):
            return [raw("a", "x", ns=ns, p95_ns=p95)]

        for old, new, status in (
            (one(1000, 1010), one(1021, 1021), 0),
            (one(1000, 1010), one(1022, 1022), 1),
            (one(1000, 1000), one(1040, 1060), 0),
            (one(1000, 1000), one(1001, 1001), 0),
            (one(1000, 1000), one(1002, 1002), 1),
            (one(1000, 1000), one(500, 500), 0),
        ):
            self.assertEqual(self.status(old, new)[0], status, (old, new))
        self.assertEqual(self.status(one(1000, 1000), one(1050, 1050), "--slack", "5")[0], 0)
        self.assertEqual(self.status(one(1000, 1000), one(1052, 1052), "--slack", "5")[0], 1)

    def test_rows_that_cannot_be_compared_are_named(self):
        old = [raw("a", "x"), raw("a", "gone"), raw("a", "elsewhere")]
        new = [raw("a", "x"), raw("a", "fresh"), {**raw("a", "elsewhere"), "gpu": "another"}]
        status, out, _ = self.status(old, new, "--all")
        self.assertEqual(status, 0)
        for part in (
            "a gone cuda: not in the new",
            "a fresh cuda: new",
            "taken on NVIDIA H200 and on another",
            "1 compared",
        ):
            self.assertIn(part, out)
        self.assertEqual(self.status([raw("a", "x")], [raw("b", "x")])[0], 2)


class ReadmeTable(TestCase):
    def test_writes_between_the_markers_and_checks(self):
        recorded = self.path("r.jsonl", machine())
        readme = self.path("README.md", f"before\n{readme_table.BEGIN}\nold\n{readme_table.END}\nafter\n")
        args = ("--recorded", recorded, "--readme", readme)
        self.assertEqual(self.run_main(readme_table, *args, "--check")[0], 1)
        self.assertEqual(self.run_main(readme_table, *args)[0], 0)
        self.assertEqual(self.run_main(readme_table, *args, "--check")[0], 0)
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
        self.assertNotIn("old", text)
        for part in (
            "| read stream | 3.00 TB/s |",
            "CF-1 reproduced",
            "195 / 195 / 195 / 195",
            "658 / 666 / 682 / 714",
        ):
            self.assertIn(part, text)

    def test_missing_markers(self):
        recorded = self.path("r.jsonl", machine())
        for text in ("", readme_table.BEGIN, f"{readme_table.END}{readme_table.BEGIN}"):
            readme = self.path("README.md", text)
            status, _, err = self.run_main(readme_table, "--recorded", recorded, "--readme", readme)
            self.assertEqual((status, err.count("\n")), (2, 1))

    def test_markup_cannot_leave_its_cell(self):
        text = readme_table.table(
            rows_of([moved("generate", "x|y<z>_b1", 9, 9, first_token_ns=1)]), "r.jsonl"
        )
        self.assertIn("x\\|y&lt;z>", text)

    def test_nothing_recorded_is_an_empty_table(self):
        self.assertIn("CF-1 not measurable here", readme_table.table(Rows([]), "r.jsonl"))


if __name__ == "__main__":
    unittest.main()
