#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the results table of README.md, between its two marker comments, from the recordings.

python3 reports/readme_table.py           writes the table
python3 reports/readme_table.py --check   writes nothing; exit status 1 if the table is not that of the recordings

The table has a column for each recording, by default every reports/*.jsonl; sections/cards.py computes the
figures.
"""

import argparse
import os
import sys

from claims import all_claims
from sections import cards
from base.page import DASH
from base.records import BadRecords, Ceilings, Machine

BEGIN, END = "<!-- results -->", "<!-- /results -->"
# Figures of cards.py in the README, by the beginning of their names; the report shows all of them.
CHOSEN = (
    "read stream",
    "DSMEM load",
    "DSMEM bandwidth",
    "all-reduce of 256 B",
    "rmsnorm",
    "sampling",
    "product",
    "paged decode, 32/8 heads, batch 64",
    "paged prefill",
    "attention block, Llama-2-7B, batch 1, 1024",
    "whole step, batch 1, Llama-3-8B, 1024",
    "whole step, batch 1, DeepSeek-V2-Lite",
    "all-reduce with residual",
    "whole step over 2 GPUs",
    "first token over 2 GPUs, Llama-3.1-8B, 32,768",
    "first token over 2 GPUs, Llama-3-8B, 131,072",
    "Llama-3-8B bf16, offline",
    "server, Poisson",
)
VERDICTS = ("reproduced", "refuted in part", "refuted", "not measured")


def described(recording):
    machine = Machine(recording.gpu)
    return (
        f"{recording.card or 'No card'}: driver {', '.join(machine.drivers) or DASH}, SM clock {machine.clock()},"
        f" {len(recording.gpu)} rows of `{recording.name}`."
    )


def counts(recording, recordings):
    """The number of claims with each verdict on the card of a recording."""
    rows = cards.judged(recording, recordings)
    found = [c.verdict()[1] for c in all_claims.claims(rows, Ceilings(recording.gpu))]
    parts = [f"{found.count(verdict)} {verdict}" for verdict in VERDICTS[:3]]
    if VERDICTS[3] in found:
        parts.append(f"{found.count(VERDICTS[3])} {VERDICTS[3]}")
    return f"The papers' {len(found)} claims on the {recording.card or 'unknown card'}: {', '.join(parts)}."


def table(recordings):
    """The text between the markers."""
    columns = [{f.what: f for f in cards.figures(r.gpu)} for r in recordings]
    names = [what for what in (columns[0] if columns else ()) if what.startswith(CHOSEN)]
    names = [what for what in names if any(column[what].value for column in columns)]
    text = [described(r) for r in recordings] or ["There is no recording."]
    text = ["\n".join(text), ""]
    text.append("| figure |" + "".join(f" {cell(r.card or 'no card')} | beside it |" for r in recordings))
    text.append("|---|" + "---|---|" * len(recordings))
    for what in names:
        cells = [(f.value, f.beside if f.value else "") for f in (column[what] for column in columns)]
        text.append(f"| {cell(what)} |" + "".join(f" {cell(value)} | {cell(beside)} |" for value, beside in cells))
    text += ["", *(counts(r, recordings) for r in recordings)]
    return "\n".join(text)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def replaced(readme, text):
    """The README with a new text between its markers; None if the markers are missing or in the wrong order."""
    begin, end = readme.find(BEGIN), readme.find(END)
    if begin < 0 or end < begin:
        return None
    return f"{readme[:begin]}{BEGIN}\n{text}\n{readme[end:]}"


def main(argv=None):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    parser.add_argument("--recorded", action="append", metavar="FILE", help="may be repeated (default: reports/*.jsonl)")
    parser.add_argument("--readme", default=os.path.join(root, "README.md"), metavar="FILE")
    args = parser.parse_args(argv)
    try:
        found = cards.recordings(args.recorded or cards.default_paths())
        with open(args.readme, encoding="utf-8") as file:
            before = file.read()
        text = table(found)
    except BadRecords as error:
        print(f"readme_table: {error}", file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError) as error:
        print(f"readme_table: {args.readme}: {error}", file=sys.stderr)
        return 2
    after = replaced(before, text)
    if after is None:
        print(f"readme_table: {args.readme}: no {BEGIN} ... {END}", file=sys.stderr)
        return 2
    if args.check:
        if after != before:
            print(
                f"readme_table: {args.readme} is out of date: run python3 reports/readme_table.py",
                file=sys.stderr,
            )
        return int(after != before)
    if after != before:
        with open(args.readme, "w", encoding="utf-8", newline="\n") as file:
            file.write(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
