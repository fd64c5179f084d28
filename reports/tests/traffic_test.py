#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of reports/traffic.py with a substitute for ncu: python3 reports/tests/traffic_test.py"""

import contextlib
import io
import json
import os
import re
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from claims import fused_claims  # noqa: E402
import traffic  # noqa: E402
from base.records import parse_line  # noqa: E402
from tests.samples import TestCase  # noqa: E402


class Traffic(TestCase):
    """Parsing of ncu's output, and the records made from it."""

    HEADER = '"ID","Process ID","Kernel Name","dram__bytes_read.sum","x.sum"\n"","","","byte","byte"\n'
    ROWS = '"0","12","void f<2, 3>(args)","1,024","8"\n"1","12","g","1000.5","0"\n'

    def test_sums_over_kernels(self):
        text = "TAP\n==PROF== Connected\n" + self.HEADER + self.ROWS
        self.assertEqual(
            traffic.parse_counts(text, ["dram__bytes_read.sum", "x.sum"]),
            (2, {"dram__bytes_read.sum": 2024.5, "x.sum": 8}),
        )

    def test_what_cannot_be_read_is_said(self):
        for text, says in (
            ("==ERROR== ERR_NVGPUCTRPERM", "ERR_NVGPUCTRPERM"),
            ("nothing", "no kernel was counted"),
            (self.HEADER, "no kernel was counted"),
            (self.HEADER.replace("x.sum", "y.sum") + self.ROWS, "x.sum: this GPU has no such counter"),
            (self.HEADER.replace('"byte"\n', '"Kbyte"\n') + self.ROWS, "unit Kbyte"),
            (self.HEADER + self.ROWS.replace('"8"', '"n/a"'), "'n/a' is not a number"),
            (self.HEADER + self.ROWS.replace(',"8"', ""), "None is not a number"),
        ):
            with self.assertRaisesRegex(traffic.NoCounts, re.escape(says)):
                traffic.parse_counts(text, ["dram__bytes_read.sum", "x.sum"])

    def run_with(self, passes, launches=(2, 2)):
        """main() with substitutes for the program and ncu"""
        calls = []

        def ncu(command, **_):
            metrics = command[command.index("--metrics") + 1].split(",")
            calls.append(metrics)
            name, table = command[-1].split("."), command[command.index("--impl") + 1]
            row = {"v": 1, "op": name[1], "case": name[2], "impl": table, "bytes": 7, "flops": 9, "gpu": "NVIDIA H200"}
            with open(command[command.index("--json") + 1], "w", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            out = ",".join(f'"{k}"' for k in ["ID", "Kernel Name"] + metrics) + "\n"
            out += ",".join('""' if i < 2 else '"byte"' for i in range(2 + len(metrics))) + "\n"
            for i in range(launches[len(metrics) == 2]):
                out += f'"{i}","k",' + ",".join(f'"{len(metrics)}"' for _ in metrics) + "\n"
            again = passes if len(metrics) > 2 else 1
            return mock.Mock(stdout=out, stderr=f'==PROF== Profiling "k" - 0: 0%....100% - {again} passes\n', returncode=0)

        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(traffic.subprocess, "run", ncu), mock.patch.object(traffic.shutil, "which", lambda _: "ncu"):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = traffic.main(["traffic.py", sys.executable])
        return status, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue(), calls

    def test_records(self):
        rows = sum(len(tables) for _, _, tables in traffic.CASES)
        for passes in (1, 2):
            status, records, said, calls = self.run_with(passes)
            self.assertEqual((status, said, len(records), len(calls)), (0, "", rows, rows * passes))
            self.assertEqual(len({(r["case"], r["impl"]) for r in records}), rows)
            # each counter gives as many bytes per kernel as counters were requested; memory counters come from run two
            self.assertEqual(records[0]["dram_read_bytes"], 2 * (len(calls[0]) if passes == 1 else 2))
            self.assertEqual(records[0]["store_bytes"], 2 * 5 * len(calls[0]))
            self.assertEqual((records[0]["launches"], records[0]["bytes"], records[0]["op"]), (2, 7, "traffic"))
            for r in records:
                self.assertEqual(parse_line(json.dumps(r)).ns, None)

    def test_runs_that_differ(self):
        status, records, said, _ = self.run_with(2, (2, 3))
        self.assertEqual((status, records), (1, []))
        self.assertIn("2 kernels in one run, 3 in the next", said)

    def test_cases_are_those_the_claims_need(self):
        named = {(op.partition(".")[2], case.partition(".")[0]) for op, case, tables in traffic.CASES if "unfused" in tables}
        self.assertEqual(set(fused_claims.MODULES + fused_claims.STEPS + fused_claims.LAYERS) - named, set())


if __name__ == "__main__":
    unittest.main()
