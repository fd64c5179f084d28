#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare two recordings: python3 reports/compare.py OLD.jsonl NEW.jsonl

A row is worse if its median rose by more than the noise: twice the larger of the two spreads (p95 - median, as measured
by conformance/bench/bench.c) plus one nanosecond for rounding.  --slack adds a percentage of the old median, for machines
whose clocks vary between runs.  Only rows of the same GPU (or processor) are compared, and recordings of two different
cards are refused.  --cross compares them all the same: it prints the ratio of the times of each row and judges none.
Exit status: 0 no row is worse, 1 some are, 2 malformed input or different cards.
"""

import argparse
import sys

from base.records import BadRecords, cards, load

ROUNDING_NS = 1


def noise(old, new, slack=0.0):
    """The increase of a median that can be due to chance, in ns."""
    spreads = [max(0, r.number("p95_ns") - r.ns) for r in (old, new) if r.number("p95_ns")]
    return 2 * max(spreads, default=0) + slack * old.ns + ROUNDING_NS


def judge(old, new, slack=0.0):
    """'worse', 'better' or 'same'."""
    limit = noise(old, new, slack)
    return "worse" if new.ns - old.ns > limit else "better" if old.ns - new.ns > limit else "same"


def compare(old, new, slack=0.0, cross=False):
    """-> ([(old, new, verdict)], [reason why a row was not compared]); cross: also rows of different devices"""
    pairs, left_out = [], []
    for before in old:
        after = new.by_key.get(before.key)
        name = f"{before.op} {before.case} {before.impl}"
        if after is None:
            left_out.append(f"{name}: not in the new recording")
        elif not before.ns or not after.ns:
            left_out.append(f"{name}: has no time")
        elif before.get("gpu") != after.get("gpu") and not cross:
            left_out.append(f"{name}: taken on {before.get('gpu')} and on {after.get('gpu')}")
        else:
            pairs.append((before, after, judge(before, after, slack)))
    left_out += [f"{r.op} {r.case} {r.impl}: new" for r in new if r.key not in old.by_key]
    return pairs, left_out


def other_card(old, new):
    """(card of old, card of new) if their GPU rows have no card in common, else None."""
    both = [rows.keep(lambda r: r.on_gpu) for rows in (old, new)]
    names = [{r.get("gpu") for r in rows} for rows in both]
    return tuple(cards(rows) for rows in both) if all(names) and not names[0] & names[1] else None


def print_ratios(pairs):
    for before, after, _ in pairs:
        print(
            f"{after.ns / before.ns:6.2f} times  {before.op:<16} {before.case:<40} {before.impl:<8}"
            f" {before.ns / 1000:10.2f} -> {after.ns / 1000:10.2f} us"
        )
    print(f"{len(pairs)} compared across cards: no verdict")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--slack", type=float, default=0, metavar="PERCENT", help="tolerate this much more (default: 0)")
    parser.add_argument("--all", action="store_true", help="also show rows that did not change")
    parser.add_argument("--cross", action="store_true", help="compare different cards: ratios without a verdict")
    args = parser.parse_args(argv)
    try:
        old, new = load(args.old), load(args.new)
    except BadRecords as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    differ = other_card(old, new)
    if differ and not args.cross:
        print(
            f"compare: {args.old} is of the {differ[0]}, {args.new} of the {differ[1]}: --cross prints ratios",
            file=sys.stderr,
        )
        return 2
    pairs, left_out = compare(old, new, args.slack / 100, args.cross)
    for line in left_out:
        print(f"# {line}")
    if not pairs:
        print(f"compare: {args.old} and {args.new} have no row in common", file=sys.stderr)
        return 2
    if args.cross:
        print_ratios(pairs)
        return 0
    for before, after, verdict in pairs:
        if verdict == "same" and not args.all:
            continue
        print(
            f"{verdict:<7} {before.op:<16} {before.case:<40} {before.impl:<8} {before.ns / 1000:10.2f} -> "
            f"{after.ns / 1000:10.2f} us  {(after.ns / before.ns - 1) * 100:+7.1f}%  "
            f"(noise {noise(before, after, args.slack / 100) / 1000:.2f} us)"
        )
    counts = [sum(v == verdict for _, _, v in pairs) for verdict in ("better", "same", "worse")]
    print(f"{len(pairs)} compared: {counts[0]} better, {counts[1]} the same, {counts[2]} worse")
    return 1 if counts[2] else 0


if __name__ == "__main__":
    sys.exit(main())
