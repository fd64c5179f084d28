#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the report on synthetic records: python3 reports/tests/report_test.py (seconds; plots only if matplotlib is installed)."""

import json
import os
import subprocess
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import compare  # noqa: E402
import readme_table  # noqa: E402
import report  # noqa: E402
from base import page, plots, views  # noqa: E402
from sections import cards  # noqa: E402
from base.records import BadRecords, Ceilings, Rows, load, split_case  # noqa: E402
from tests.samples import (  # noqa: E402
    SIZES, TestCase, claims_of, fused, machine, moved, on_card, page_of, raw, recording, rows_of, targets_of,
)  # fmt: skip

H100 = "NVIDIA H100 80GB HBM3"


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
            ('{"op":1,"case":"b","impl":"c"}', "op: missing or not a string"),
            ('{"op":"","case":"b","impl":"c"}', "op: missing"),
            ('{"v":2,"op":"a","case":"b","impl":"c"}', "v: version 2"),
            ('{"op":"a","case":"b","impl":"c","median_ns":"7"}', "median_ns: '7'"),
            ('{"op":"a","case":"b","impl":"c","median_ns":NaN}', "NaN is not a JSON number"),
            ('{"op":"a","case":"b","impl":"c","gbps":Infinity}', "Infinity"),
            ('{"op":"a","case":"b","impl":"c","gbps":1e999}', "gbps: inf"),
            ('{"op":"a","case":"b","impl":"c","gbps":true}', "gbps: True"),
            ('{"op":"a","case":"b","impl":"c","median_ns":0}', "median_ns: 0 is not above 0"),
            ('{"op":"a","case":"b","impl":"c","p95_ns":-1}', "p95_ns: -1"),
            ('{"op":"a","case":"b","impl":"c","gpu":7}', "gpu: 7 is not a string"),
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
        lacks = self.path("lacks.jsonl", [*machine(), raw("serve", "m_online80", reached=True)])
        readme = self.path("README.md", f"{readme_table.BEGIN}\n{readme_table.END}\n")
        out = os.path.join(self.dir.name, "out")
        for program, args in (
            (report, ("--measured", bad, "--out", out)),
            (report, ("--measured", good, "--recorded", bad, "--out", out)),
            (report, ("--measured", good + "x", "--out", out)),
            (report, ("--measured", lacks, "--out", out)),
            (readme_table, ("--recorded", lacks, "--readme", readme)),
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

    def test_a_row_without_what_its_family_adds_is_named(self):
        rows = [*machine(), raw("serve", "m_online80", reached=True)]
        path = self.path("lacks.jsonl", rows)
        status, _, err = self.run_main(report, "--measured", path, "--out", os.path.join(self.dir.name, "out"))
        self.assertEqual(status, 2)
        self.assertEqual(
            err, f"report: {path}:{len(rows)}: serve m_online80: p99_over_mean: missing or not a finite number\n"
        )

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
        for part in ("Fused cluster attention", "figure 11", "figure 13", "figure 8", "figures 16 and 20", "SPLIT_HEAD", "CF-12"):
            self.has(text, part)
        for part in ("Figure 12 of the source, by hardware counters", "cluster_mla_dsv2lite_b1_kv1024"):
            self.has(text, part)
        text = self.check_html(page_of([r for r in machine() + fused(True) if r["op"] != "traffic"]))
        self.has(text, "traffic *: reports/traffic.py")
        self.check_html(page_of([r for r in fused(False) if r["op"] == "cluster_mla"]))

    def test_the_ladder_is_shown_if_it_has_rows_and_is_nobodys_peer(self):
        def step(impl, tflops):
            return raw("attn_dense", "h16_d128_b4_s4096_causal_bf16", impl, 1e9 / tflops, flops=10**12, tflops=tflops)

        text = self.check_html(page_of([*machine(), step("cuda", 605)]))
        self.has(text, "Attention in steps", False)
        slow = moved("attn_paged", "decode_h32_8_b64_kv4096_bf16", 1 << 30, 1500, "ladder2")
        text = self.check_html(page_of([*machine(), step("cuda", 605), step("ladder3", 333), slow]))
        for part in ("Attention in steps", "3 mma, cp.async", "333", "<td>2 shared keys</td>", "50</td>"):
            self.has(text, part)
        self.has(text, "1 x 16384", False)
        self.has(text, "Peer: ladder", False)
        text = self.check_html(page_of([step("ladder3", 333), step("vendor", 400)]))
        self.has(text, "<td>vendor</td><td class=r>2500")

    def test_4_bits_stand_beside_16_and_products_without_a_peer_are_named(self):
        ours = moved("gemm_w4", "m1_n4096_k4096_int_g128_bf16", 1 << 23, (1 << 23) / 4000)
        text = self.check_html(page_of([*machine(), ours]))
        self.has(text, "What 4 bits save")
        self.has(text, "4.00</td><td class=r>13.42</td><td class=r>16.78</td><td class=r>3.36×")
        self.has(text, "rows of gemm by cuBLASLt", False)
        other = moved("gemm_w4", "m1_n96_k64_mx_bf16", 4096, 1)
        text = self.check_html(page_of([*machine(), other, moved("gemm", "m2_n4096_k4096_bf16", 1 << 25, 2500)]))
        self.has(text, "What 4 bits save", False)
        self.has(text, "rows of gemm by cuBLASLt (<code>m2_n4096_k4096_bf16</code>)")

    def test_keys_of_8_bits_are_not_taken_for_those_of_16(self):
        fp8 = moved("attn_paged", "decode_h32_8_b64_kv4096_fp8", 1 << 29, 2900)
        plain, both = targets_of(machine()), targets_of([*machine(), fp8])
        self.assertEqual({k: t.reached for k, t in plain.items()}, {k: t.reached for k, t in both.items()})
        self.has(self.check_html(page_of([*machine(), fp8])), "decode_h32_8_b64_kv4096_fp8")

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
        self.has(text, "rows with a wrong result")

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
        self.assertIn("file not found", err)
        with open(os.path.join(out, "index.html"), encoding="utf-8") as file:
            self.check_html(file.read())
        status, _, err = self.run_main(report, "--measured", measured, "--out", measured)
        self.assertEqual((status, err.count("\n")), (2, 1))

    def test_numbers(self):
        for value, text in (
            (None, page.DASH),
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
            self.assertEqual(page.num(value), text)
        self.assertEqual(
            [page.percent(x) for x in (None, 0.7, 0.096, 0.05)],
            [page.DASH, "70%", "10%", "5.0%"],
        )
        self.assertEqual([page.us(x) for x in (1234, 123456, 1234567)], ["1.23", "123.5", "1235"])


class Plots(TestCase):
    """The page with plots, if matplotlib is installed."""

    def setUp(self):
        super().setUp()
        try:
            import matplotlib.pyplot
        except ImportError:
            self.skipTest("no matplotlib")
        patch = mock.patch.object(plots, "plt", matplotlib.pyplot)
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
        for drawing in (
            plots.lines([("a", [(1, 1)])], "x", "y", references=[(2, "b")]),
            plots.panels([("a", [("b", [(8, 3)])])], "x", "y"),
            plots.bars([("a", 1, "k")], "x"),
            plots.columns(["a"], [("b", [None]), ("c", [1])], "x", "y"),
            plots.columns(["a"], [("b", [1])], "x", "y", marks=[(2, "peer")]),
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
            "| figure | NVIDIA H200 | beside it |",
            "| read stream | 3.00 TB/s |",
            "on the NVIDIA H200: 6 reproduced, 0 refuted in part, 0 refuted, ",
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
        self.assertEqual(readme_table.cell("x|y<z>\n"), "x\\|y&lt;z> ")
        rows = [{**moved("stream", "read_1g", 1 << 30, 3000), "gpu": "x|y<z>"}]
        self.assertIn("| figure | x\\|y&lt;z> | beside it |", readme_table.table([recording(rows)]))

    def test_nothing_recorded_is_an_empty_table(self):
        text = readme_table.table([recording([])])
        self.assertIn("0 reproduced, 0 refuted in part, 0 refuted, 57 not measured", text)
        self.assertIn("There is no recording.", readme_table.table([]))

    def test_a_peer_is_named_after_its_library(self):
        for impl, version, name in (
            ("peers", "cublaslt", "cuBLASLt"),
            ("peers", "cudnn 9.19.0", "cuDNN 9.19.0"),
            ("flashinfer", "flashattention-3", "FlashInfer"),
            ("flashinfer", "0.6.17 flashattention-3", "FlashInfer 0.6.17"),
            ("unfused", "own", "separate kernels"),
            ("mine", "1", "mine"),
        ):
            rows = recording([raw("attn_bwd", "a", impl, impl_version=version)]).gpu
            self.assertEqual([views.peer_name(r) for r in rows.find("attn_bwd")], [name])

    def test_a_peer_of_another_run_is_marked(self):
        for source, marked in (("1", False), ("2", True)):
            rows = [
                raw("gemm", "m8192_n8192_k8192_bf16", "cuda", 1e6, flops=10**12, tflops=700, source="1"),
                raw("gemm", "m8192_n8192_k8192_bf16", "peers", 1e6, flops=10**12, tflops=700, source=source),
            ]
            self.has(page_of(rows), "in the same run; *: in another run", marked)
            self.has(page_of(rows), "1.00×*", marked)
            beside = {f.what: f.beside for f in cards.figures(recording(rows).gpu)}["product 8192^3, bf16"]
            self.assertEqual(beside.endswith(", in another run"), marked)

    def test_rows_judged_by_a_rule_of_their_own_are_marked(self):
        said = "are judged by a rule of their own"
        self.has(page_of(machine()), said)
        self.has(page_of([{k: v for k, v in r.items() if k != "rules"} for r in machine()]), said, False)

    def test_at_most_twenty_figures_that_all_exist(self):
        known = [f.what for f in cards.figures(Rows([]))]
        self.assertLessEqual(sum(what.startswith(readme_table.CHOSEN) for what in known), 20)
        for chosen in readme_table.CHOSEN:
            self.assertTrue(any(what.startswith(chosen) for what in known), chosen)


def h100(speed=0.7):
    """The rows of machine() as an H100 could have recorded them, with the shares of its datasheet."""
    return [
        {**r, "peak_pct": round(r["gbps"] / 33.5, 1)} if r["op"] == "stream" else r
        for r in on_card(H100, machine(), speed)
    ]


class Cards(TestCase):
    """Recordings of two cards: figures, shares and verdicts of one never use those of the other."""

    def recorded(self):
        return [recording(machine()), recording(h100(), "reports/h100.jsonl")]

    def test_the_readme_has_a_column_for_each_card(self):
        text = readme_table.table(self.recorded())
        self.assertIn("| figure | NVIDIA H200 | beside it | NVIDIA H100 80GB HBM3 | beside it |", text)
        self.assertIn("| read stream | 3.00 TB/s |  | 2.10 TB/s, 63% of the datasheet's 3.35 |  |", text)
        self.assertIn("rows of `reports/h100.jsonl`", text)
        # the clusters' bandwidth is that of machine(): relative to a slower memory it is another result of CF-2
        self.assertIn(f"on the {H100}: 5 reproduced, 1 refuted in part", text)
        # the share of the same kernel is the same, because each is of the ceiling of its own run
        self.assertEqual(text.count("33% of the read ceiling"), 2)
        fewer = [r for r in h100() if r["impl"] != "flashinfer"]
        text = readme_table.table([recording(machine()), recording(fewer, "reports/h100.jsonl")])
        line = next(line for line in text.splitlines() if line.startswith("| rmsnorm"))
        self.assertIn("FlashInfer 0.6.17", line.split("|")[3])
        self.assertNotIn("FlashInfer", line.split("|")[5])

    def test_a_figure_that_one_card_lacks(self):
        fewer = [r for r in h100() if r["op"] != "sample"]
        text = readme_table.table([recording(machine()), recording(fewer, "reports/h100.jsonl")])
        line = next(line for line in text.splitlines() if line.startswith("| sampling"))
        self.assertEqual([cell.strip() for cell in line.split("|")[4:6]], ["", ""])

    def test_recordings_are_found_and_that_of_an_h200_comes_first(self):
        a, b = self.path("a.jsonl", h100()), self.path("b.jsonl", machine())
        self.assertEqual([r.card for r in cards.recordings([a, b])], ["NVIDIA H200", H100])
        self.assertIn("reports/h200.jsonl", [cards.shown_name(p) for p in cards.default_paths()])

    def test_mixed_and_double_recordings_are_refused(self):
        mixed = self.path("mixed.jsonl", machine() + [{**raw("stream", "read_2g"), "gpu": H100}])
        one, two = self.path("one.jsonl", machine()), self.path("two.jsonl", machine())
        for paths, part in (
            ([mixed], "rows of several cards: NVIDIA H100 80GB HBM3, NVIDIA H200"),
            ([one, two], "already a recording of the NVIDIA H200"),
        ):
            with self.assertRaises(BadRecords) as caught:
                cards.recordings(paths)
            self.assertIn(part, str(caught.exception))
        out = os.path.join(self.dir.name, "out")
        status, _, err = self.run_main(report, "--measured", one, "--recorded", one, "--recorded", two, "--out", out)
        self.assertEqual((status, err.count("\n")), (2, 1))

    def test_without_a_gpu_the_h200_is_shown_and_the_others_beside_it(self):
        host = [moved("rmsnorm", "rows1_dim4096_bf16", 16384, 9, "cpu")]
        text = self.check_html(report.build(rows_of(host), self.recorded()))
        self.has(text, "No GPU was found on this machine")
        self.has(text, "</b><i>NVIDIA H200.</i> Cycles of one dependent load")
        self.has(text, "Cards side by side")
        self.has(text, "2.10 TB/s, 63% of the datasheet&#x27;s 3.35")
        self.has(text, "recorded in <code>reports/h100.jsonl</code>")
        self.has(self.check_html(page_of(host, machine())), "Cards side by side", False)

    def test_a_card_with_a_recording_is_compared_with_its_own(self):
        slow = on_card(H100, machine(), 0.35)
        text = self.check_html(report.build(rows_of(slow), self.recorded()))
        self.has(text, "The recording is <code>reports/h100.jsonl</code>, of the same kind of card")
        self.has(text, "+100%")
        self.has(text, "no recording of", False)
        self.has(text, "Cards side by side")

    def test_a_card_without_a_recording_is_not_compared(self):
        other = on_card("NVIDIA H100 PCIe", machine(), 0.5)
        text = self.check_html(report.build(rows_of(other), self.recorded()))
        for part in (
            "The repository has no recording of this machine's card, the NVIDIA H100 PCIe",
            "No row is compared, because the repository has no recording of the NVIDIA H100 PCIe",
            "<code>reports/h100.jsonl</code>, of the NVIDIA H100 80GB HBM3",
            "NVIDIA H100 PCIe</th>",
        ):
            self.has(text, part)
        self.has(text, "agree within the noise", False)

    def test_the_datasheet_is_the_programs(self):
        self.assertEqual(Ceilings(rows_of(h100())).datasheet(), 3350)
        self.assertIsNone(Ceilings(rows_of([moved("stream", "read_1g", 1 << 30, 3000)])).datasheet())
        text = page_of(h100())
        self.has(text, "The datasheet gives 3.35 TB/s; this card reaches 63% of that.")
        unknown = [{k: v for k, v in r.items() if k != "peak_pct"} for r in h100()]
        self.has(page_of(unknown), "The datasheet gives", False)

    def test_targets_in_absolute_units_are_judged_on_an_h200_only(self):
        rows = machine(read=4600) + fused(True)
        here, there = targets_of(rows), targets_of(on_card(H100, rows, 0.7))
        for name in ("read stream", "fused module, llama2_7b_b1_kv1024", "time per token, llama3_8b_b1_kv1024"):
            self.assertIsNotNone(here[name].reached, name)
            self.assertIsNone(there[name].reached, name)
            self.assertEqual(there[name].verdict(), ("none", "set for an H200"))
            self.assertNotEqual(there[name].here, page.DASH)
        for name in ("generate, Llama-3-8B shape, batch 1", "all-reduce of 256 B, cluster 4", "rmsnorm, 128 x 4096", "against unfused, llama2_7b_b1_kv1024"):
            self.assertEqual(here[name].reached, there[name].reached, name)
            self.assertIsNotNone(there[name].reached)
        self.has(self.check_html(page_of(on_card(H100, rows))), "set for an H200")

    def test_claims_do_not_depend_on_the_card(self):
        for rows in (machine(), fused(True), fused(False)):
            here, there = claims_of(rows), claims_of(on_card(H100, rows))
            self.assertEqual({n: c.verdict() for n, c in here.items()}, {n: c.verdict() for n, c in there.items()})

    def test_record_refuses_a_file_of_another_card(self):
        script = os.path.join(os.path.dirname(cards.FOLDER), "tools/record.sh")
        smi = self.path("nvidia-smi", f"#!/bin/sh\ncase $* in *name*) echo '{H100}' ;; esac\n")
        os.chmod(smi, 0o755)
        host = {**raw("http", "x", "cpu"), "driver": ""}
        for rows, refused in ((machine() + [host], True), (h100() + [host], False), ([host], False), ([], False)):
            path = self.path("file.jsonl", rows)
            got = subprocess.run(
                ["sh", script, "/nonexistent", path, "bench"],
                env={**os.environ, "PATH": f"{self.dir.name}:{os.environ['PATH']}"}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            self.assertEqual("has rows of another card" in got.stderr, refused, got.stderr)
            if refused:
                self.assertEqual((got.returncode, H100 in got.stderr, "NVIDIA H200" in got.stderr), (2, True, True))

    def test_compare_refuses_two_cards(self):
        old, new = self.path("old.jsonl", machine()), self.path("new.jsonl", h100(0.5))
        status, out, err = self.run_main(compare, old, new)
        self.assertEqual((status, out, err.count("\n")), (2, "", 1))
        self.assertIn("is of the NVIDIA H200", err)
        self.assertIn(f"of the {H100}: --cross", err)
        status, out, _ = self.run_main(compare, old, new, "--cross")
        self.assertEqual(status, 0)
        self.assertIn("  2.00 times  rope ", out)
        self.assertIn("no verdict", out)
        for word in ("worse", "better"):
            self.assertNotIn(word, out)
        self.assertEqual(self.run_main(compare, new, new)[0], 0)


if __name__ == "__main__":
    unittest.main()
