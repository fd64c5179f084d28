#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the map of the chip: python3 reports/tests/validate_test.py"""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import report  # noqa: E402
from base.records import Rows, parse_line  # noqa: E402
from sections import validate_section  # noqa: E402


def row(case, **other):
    shared = {"v": 1, "op": "validate", "case": case, "impl": "cuda", "gpu": "NVIDIA H100", "driver": "580"}
    return parse_line(json.dumps({**shared, "verdict": "pass", "findings": [], **other}))


UNITS = [{"place": p, "gpc": p // 4, "cycles": 1000 + 100 * (p // 4) + 60 * (p == 6)} for p in range(8)]
FINDING = {"verdict": "fail", "text": "slow", "place": 6}


class Map(unittest.TestCase):
    def test_levels_groups(self):
        slower = validate_section.rates(row("rate.f16", units=UNITS))
        self.assertEqual([p for p, v in slower.items() if v > 1], [6])
        self.assertEqual(validate_section.cells({0: 0, 1: -1, 2: 0}, {0: 5, 1: 6, 2: 7})[0], (0, [(0, 5), (2, 7)]))

    def test_page_has_the_map(self):
        rows = [
            row("rate.f16", units=UNITS, findings=[FINDING]),
            row("dsmem.pairs", latency=[[0, 1, 200.0], [0, 2, 210.0], [1, 0, 190.0]]),
        ]
        rows.append(row("links", device=0, links={"alone": {"1": [372.0, 374.0]}, "both_ways": {"1": [361.0]}, "together": {}}))
        text = report.build(Rows(rows))
        self.assertEqual(validate_section.links(rows[-1]), [("1", 373.0, 361.0, None)])
        self.assertIn("The links of GPU 0", text)
        self.assertIn('id="validate"', text.replace("id=validate", 'id="validate"'))
        self.assertIn("8 SMs of the GPU validated last", text)
        self.assertNotIn("validated last", report.build(Rows([row("screen.f16")])))


if __name__ == "__main__":
    unittest.main()
