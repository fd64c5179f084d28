#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the claims on serving and of the drawing of the tree: python3 reports/tests/serving_claims_test.py"""

import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import readme_table  # noqa: E402
from claims import serving_claims  # noqa: E402
from sections import tree_drawing  # noqa: E402
from tests.samples import TestCase, claims_of, page_of, raw, recording, rows_of  # noqa: E402

TEXTS = {"S": 6, "H": 6, "P": 45, "W": 30, "T": 40, "X": 12, "N": 6, "M": 12, "L": 12, "O": 12}
TEXTS |= dict.fromkeys("QRUV", 4) | dict.fromkeys("ABCD", 2)
TRACE = (  # (nodes as "name parent state texts", tokens of the prompts, tokens found)
    ("", 0, 0),
    ("b a + SH", 6, 0),
    ("b a * SH, c b + P", 12, 12),
    ("b a * S, b' b _ H, c b' _ P, d b + W", 6, 6),
    ("b a * S, b' b _ H, c b' - P, d b * W, h d + T", 36, 36),
    ("b a _ S, b' b _ H, d b _ W, h d _ T, e a + XQA", 16, 0),
    ("b a _ S, b' b _ H, g b _ W, h g _ T, e a * X, i e _ QA, j e + RB, k e + UC, l e + VD", 48, 36),
    ("b a * S, b' b * H, f b' + PN, g b - W, h g - T, e a _ X, i e _ QA, j e _ RB, k e _ UC, l e _ VD", 57, 12),
    ("b a _ S, b' b _ H, f b' _ PN, e a * X, j e * R, j' j _ B, m j + M, n j + L, o j + O, i e - QA, k e - UC, l e - VD",
     16, 16),
)  # fmt: skip


def host(op, case, **members):
    return {"v": 1, "op": op, "case": case, "impl": "host", "ok": True, "gpu": "a CPU", "driver": "", **members}


def trace(change=None):
    """Rows of the nine steps. change: {step: (text to replace, replacement)}; {step: None}: without that row"""
    out = []
    for number, (line, prompt, found) in enumerate(TRACE, 1):
        if change and number in change:
            if change[number] is None:
                continue
            assert change[number][0] in line or not line
            line = line.replace(*change[number])
        nodes = []
        for part in line.split(", ") if line else ():
            name, parent, state, edge = part.split()
            texts = [[f"text {c}", TEXTS[c]] for c in edge]
            nodes.append({"name": name, "parent": parent, "state": state.replace("_", " "), "edge": texts})
        out.append(
            host(
                "prefix_trace", f"step{number}", what=f"({number}) what", nodes=nodes, pages=120, pages_taken=99,
                prompt_tokens=prompt, found_tokens=found,
            )
        )  # fmt: skip
    return out


def serving(
    waste=0.017, reserved=0.785, sampling=0.01, beam=0.55, shared=2200, hits=(0.3, 0.6, 0.7, 0.9), keep=9500, saved=3.02,
    copies=7.0, dropped=0.0099,
):  # fmt: skip
    """Rows of a run; with the default arguments every claim holds, most of them with no margin."""
    out = [
        host(
            "kv_waste", f"waste_page{page}", sharegpt_waste=waste, alpaca_waste=0.07, sharegpt_reserved=reserved,
            alpaca_reserved=0.95, simulated=True,
        )
        for page in (8, 16)
    ]  # fmt: skip
    for data in ("sharegpt", "alpaca"):
        for n in (2, 4, 6):
            out.append(
                host("kv_waste", f"sharing_{data}_{n}", sampling_saved=sampling, beam_saved=beam, simulated=True)
            )
    out += [
        raw("sharing_speed", "llama3_8b_n4", shared_tokens_per_s=shared, apart_tokens_per_s=1000),
        host(
            "scheduler_claims", "longest_prefix_first", arrival_hits=hits[0], bound16_hits=hits[1], bound64_hits=hits[2],
            longest_hits=hits[3], simulated=True,
        ),
        raw("throughput", "llama3_8b_1024_512", tokens_per_s=10000),
        raw("throughput", "llama3_8b_keep", tokens_per_s=keep, gb_per_s=2.5, offloaded=400, layer_offloads=400),
        host(
            "scheduler_claims", "offload", saved_ratio=saved, computed_tokens=49816, computed_with_host=11144,
            simulated=True,
        ),
        host("scheduler_claims", "late_ends", dropped_share=dropped, draws=10000, dropped=99, simulated=True),
    ]  # fmt: skip
    for direction in ("in", "out"):
        for shape in ("llama3_8b_page16", "llama3_8b_page64", "llama2_70b_of8_page16"):
            for way, ns in (("pieces", 1000 * copies), ("staged", 1000), ("cuda", 1100)):
                out.append(raw("kv_move_link", f"pages_{direction}_{shape}", way, ns, bytes=1 << 20))
    return out + trace()


NAMES = ("AT-11", "AT-12", "AT-13", "AT-14", "NF-9", "NF-10", "NF-11")


def verdicts(records):
    found = claims_of(records)
    return {name: found[name].verdict()[1] for name in NAMES}


class Verdicts(TestCase):
    def test_all_reproduced(self):
        self.assertEqual(verdicts(serving()), dict.fromkeys(NAMES, "reproduced"))

    def test_nothing_measured(self):
        self.assertEqual(verdicts([]), dict.fromkeys(NAMES, "not measured"))
        for claim in serving_claims.claims(rows_of([])):
            self.assertTrue(claim.parts and all(p.needs and p.holds is None for p in claim.parts), claim.id)

    def test_each_at_its_limit(self):
        for name, bad in (
            ("AT-11", {"waste": 0.04}),
            ("AT-11", {"reserved": 0.59}),
            ("AT-11", {"reserved": 0.81}),
            ("AT-12", {"sampling": 0.0}),
            ("AT-12", {"beam": 0.549}),
            ("AT-12", {"shared": 2199}),
            ("AT-14", {"hits": (0.3, 0.6, 0.7, 0.3)}),
            ("AT-14", {"hits": (0.3, 0.3, 0.7, 0.9)}),
            ("AT-14", {"hits": (0.3, 0.6, 0.59, 0.9)}),
            ("NF-9", {"keep": 9499}),
            ("NF-9", {"saved": 3.01}),
            ("NF-10", {"copies": 6.99}),
            ("NF-11", {"dropped": 0.01}),
        ):
            found = verdicts(serving(**bad))
            self.assertTrue(found.pop(name).startswith("refuted"), (name, bad))
            self.assertEqual(set(found.values()), {"reproduced"}, (name, bad))
            self.assertTrue(all(p.why for p in claims_of(serving(**bad))[name].failing()), bad)

    def test_without_any_one_row(self):
        """A missing row improves no verdict, and its part names the row that it needs."""
        needed = 0
        for i, row in enumerate(serving()):
            records = serving()[:i] + serving()[i + 1 :]
            found = claims_of(records)
            lacking = [c.id for c in found.values() if c.id in NAMES and c.verdict()[1] == "not measured"]
            optional = row["case"] == "waste_page8" or row["impl"] == "cuda" and row["op"] == "kv_move_link"
            optional |= row["case"].startswith(("pages_out_llama3_8b_page64", "pages_out_llama2"))
            self.assertEqual(len(lacking), 0 if optional else 1, row)
            needed += not optional
        self.assertEqual(needed, 1 + 6 + 1 + 1 + 2 + 1 + 1 + 8 + 9)

    def test_a_row_that_failed_decides_nothing(self):
        records = [r | {"ok": False} for r in serving()]
        self.assertEqual(verdicts(records), dict.fromkeys(NAMES, "not measured"))

    def test_members_that_are_missing_or_no_numbers(self):
        keys = {k for r in serving() for k in r} - {"v", "op", "case", "impl", "ok", "gpu", "driver"}
        bare = [{k: v for k, v in r.items() if k not in keys} for r in serving()]
        self.assertEqual(verdicts(bare), dict.fromkeys(NAMES, "not measured"))
        known = ("n", "min_ns", "median_ns", "p95_ns", "warm_ns", "bytes", "seed", "sm_mhz", "source", "impl_version")
        words = [{k: "?" if k in keys and k not in known else v for k, v in r.items()} for r in serving()]
        found = verdicts(words)
        self.assertEqual(found.pop("NF-10"), "reproduced")  # all its members are known
        self.assertEqual(set(found.values()), {"not measured"})

    def test_simulated_is_said(self):
        found = claims_of(serving())
        self.assertEqual(
            [sum("(simulated)" in p.here for p in found[name].parts) for name in NAMES], [2, 2, 0, 2, 1, 0, 1]
        )
        real = claims_of([{k: v for k, v in r.items() if k != "simulated"} for r in serving()])
        self.assertFalse(any("simulated" in p.here for name in NAMES for p in real[name].parts))

    def test_what_is_said(self):
        found = claims_of(serving(keep=9700))
        said = "3.0% (9700 against 10\u202f000 tokens/s); 2.5 GB/s offloaded, 100% of the pages layer by layer"
        self.assertEqual(found["NF-9"].parts[0].here, said)
        self.assertIn("7.0 times; by a single launch 6.4", found["NF-10"].parts[0].here)
        self.assertIn("2.20 times", found["AT-12"].parts[2].here)
        self.assertIn("0.99% (99 of 10\u202f000)", found["NF-11"].parts[0].here)

    def test_readme_says_them(self):
        text = readme_table.table([recording(serving())])
        self.assertIn(f"{len(NAMES)} reproduced, 0 refuted in part, 0 refuted", text)


class Trace(TestCase):
    def holds(self, change):
        return [p.holds for p in claims_of(trace(change))["AT-13"].parts]

    def test_nine_steps(self):
        self.assertEqual(self.holds(None), [True] * 9)

    def test_each_step_can_fail(self):
        for step, (bad, by) in {
            1: ("", "b a _ S"),
            2: ("b a + SH", "b a + S, c b + H"),
            3: ("c b + P", "c a + SHP"),  # not below b
            4: ("b a * S, b' b _ H, c b' _ P, d b + W", "b a * SH, c b _ P, d a + SW"),  # b is not split
            5: ("c b' - P", "c b' _ P"),  # c is still there
            6: ("e a + XQA", "e b + XQA"),
            7: ("e a * X, i e _ QA, j e + RB", "e a _ XQA, j a + XRB"),
            8: (", g b - W, h g - T", ", g b _ W, h g - T"),
            9: ("j' j _ B", "j' j _ A"),  # a different answer in place of j
        }.items():
            found = self.holds({step: (bad, by)})
            self.assertIs(found[step - 1], False, step)
            self.assertEqual(found[: step - 1], [True] * (step - 1), step)

    def test_a_node_that_vanished_is_seen(self):
        self.assertIs(self.holds({6: (", h d _ T", "")})[5], False)

    def test_a_prompt_that_was_not_found(self):
        for number, there in ((3, False), (4, True), (5, False), (9, False)):
            records = trace()
            records[number - 1]["found_tokens"] -= 1
            self.assertIs(claims_of(records)["AT-13"].parts[number - 1].holds, there, number)

    def test_no_tree_in_the_row(self):
        for bad in (
            "?", [1], [{}], [{"name": "b", "parent": "a", "state": "?", "edge": [["x", 1]]}],
            [{"name": "a", "parent": "a", "state": "+", "edge": [["x", 1]]}],
            [{"name": "b", "parent": "a", "state": "+", "edge": []}],
            [{"name": "b", "parent": "a", "state": "+", "edge": [["x", "1"]]}],
            [{"name": "b", "parent": "c", "state": "+", "edge": [["x", 1]]}],
            [{"name": "b", "parent": "c", "state": "+", "edge": [["x", 1]]},
             {"name": "c", "parent": "b", "state": "+", "edge": [["x", 1]]}],
            [{"name": "b", "parent": "a", "state": "+", "edge": [["x", 1]]}] * 2,
        ):  # fmt: skip
            records = trace()
            records[4]["nodes"] = bad
            self.assertEqual(claims_of(records)["AT-13"].verdict()[1], "not measured", bad)
            self.has(self.check_html(page_of(records)), "the nine steps of the prefix tree")

    def test_drawn_without_a_plotting_library(self):
        text = self.check_html(page_of(trace()))
        self.assertEqual(text.count("<svg"), 1)
        drawing = text[text.index("<svg") : text.index("</svg>")]
        nodes = sum(len(line.split(", ")) for line, _, _ in TRACE if line)
        self.assertEqual(drawing.count("<circle") + drawing.count("<rect"), nodes + 9 + 4)  # roots, legend
        edges = [(n["state"], len(n["edge"])) for r in trace() for n in r["nodes"]]
        self.assertEqual(drawing.count("<tspan"), 2 * sum(pieces for _, pieces in edges))
        self.assertEqual(drawing.count("line-through"), sum(pieces for state, pieces in edges if state == "-"))
        for part in ("(7) what", "99 of 120 pages; 36 of 48 tokens of prompts found", "text X"):
            self.assertIn(part, drawing)
        self.assertTrue(text == page_of(trace()))

    def test_everything_lies_within(self):
        drawing = tree_drawing.svg(tree_drawing.steps(rows_of(trace())))
        height = float(re.search(r'height="([\d.]+)"', drawing)[1])
        xs = [float(x) for x in re.findall(r' (?:x|cx)="(-?[\d.]+)"', drawing)]
        ys = [float(y) for y in re.findall(r' (?:y|cy)="(-?[\d.]+)"', drawing)]
        self.assertTrue(min(xs) >= 0 and max(xs) <= tree_drawing.WIDTH, (min(xs), max(xs)))
        self.assertTrue(min(ys) >= 0 and max(ys) <= height, (min(ys), max(ys), height))

    def test_long_edges_are_broken(self):
        edge = (("x" * 30, 1), ("y" * 20, 2), ("z" * 90, 3))
        self.assertEqual(tree_drawing.lines_of(edge, 70), [[edge[0], edge[1]], [edge[2]]])
        self.assertEqual(tree_drawing.lines_of(edge, 40), [[piece] for piece in edge])

    def test_markup_in_records_stays_text(self):
        evil = '<script>"'
        records = trace()
        for row in records:
            row["what"] = evil
            for n in row["nodes"]:
                n["name"] += evil
                n["parent"] += evil if n["parent"] != "a" else ""
                n["edge"] = [[evil + text, tokens] for text, tokens in n["edge"]]
        self.has(self.check_html(page_of(records)), "<script", False)


if __name__ == "__main__":
    unittest.main()
