# SPDX-License-Identifier: Apache-2.0
"""Host and device over the last steps of a run: does the device ever wait for the host?

Row: op throughput, case *_timeline (serving/bench/throughput_test.c): host_us, a list of [begin, planning, launching, waiting,
reporting] per step, and device_us, [begin, end] of the pass that the step waited for.  The SVG is written directly, as
in sections/tree_drawing.py.
"""

import math
from dataclasses import dataclass

from base.page import fixed
from base.records import is_number
from sections.tree_drawing import INK, RULE, SANS, SOFT, text

PARTS = ("plan", "launch", "wait", "report")
COLOUR = {
    "plan": "#0060a0", "launch": "#a33b00", "wait": "#e3e8ed", "report": "#00664b", "pass": "#57606a", "pass2": "#8c959f"
}  # fmt: skip
MEANING = {"plan": "planning", "launch": "launching", "wait": "waiting for the pass", "report": "reporting its tokens"}
WIDTH, LEFT, RIGHT, LANE, BAR = 860, 52, 20, 30, 20
BEFORE, AFTER = 20, 60  # us around the end of a pass, shown by the second panel


@dataclass
class Step:
    at: float
    times: tuple  # one per element of PARTS
    begin: float
    end: float

    def parts(self):
        """(part, from, to) of the host's parts in order."""
        now = self.at
        for part, took in zip(PARTS, self.times):
            yield part, now, now + took
            now += took


def numbers(value, count):
    return isinstance(value, list) and len(value) == count and all(is_number(v) for v in value)


def steps(record):
    """The steps of a row, or [] if the row is malformed."""
    hosts, devices = record.get("host_us"), record.get("device_us")
    if not isinstance(hosts, list) or not isinstance(devices, list) or len(hosts) != len(devices):
        return []
    if not all(numbers(h, 5) and numbers(d, 2) for h, d in zip(hosts, devices)):
        return []
    return [Step(h[0], tuple(h[1:]), *d) for h, d in zip(hosts, devices)]


def gaps(found):
    return [b.begin - a.end for a, b in zip(found, found[1:])]


def round_times(low, high):
    """Multiples of 1, 2 or 5 times a power of ten between low and high, about eight of them."""
    span = (high - low) / 8
    unit = 10 ** math.floor(math.log10(span))
    unit *= next(m for m in (1, 2, 5, 10) if m * unit >= span)
    return [k * unit for k in range(math.ceil(low / unit), math.floor(high / unit) + 1)]


def lanes(found, top, low, high, zero):
    """A panel from time low to time high with the host above the device; zero: the time labelled 0."""
    scale = (WIDTH - LEFT - RIGHT) / (high - low)
    out = []

    def bar(start, end, lane, colour):
        start, end = max(start, low), min(end, high)
        if end > start:
            x = LEFT + (start - low) * scale
            out.append(
                f'<rect x="{x:.2f}" y="{top + lane * LANE:g}" width="{(end - start) * scale:.2f}" height="{BAR}"'
                f' fill="{COLOUR[colour]}"/>'
            )

    for lane, name in enumerate(("host", "device")):
        out.append(text(0, top + lane * LANE + 14, name, INK))
    for i, one in enumerate(found):
        for part, start, end in one.parts():
            bar(start, end, 0, part)
        bar(one.begin, one.end, 1, ("pass", "pass2")[i % 2])
    bottom = top + LANE + BAR
    for tick in round_times(low - zero, high - zero):
        x = round(LEFT + (tick + zero - low) * scale, 2)
        out.append(f'<path d="M{x:g} {bottom:g}V{bottom + 4:g}" stroke="{SOFT}" stroke-width="1"/>')
        name = f"{tick:,.0f}".replace(",", "\u202f").replace("-", "\u2212")
        out.append(text(x, bottom + 16, name, SOFT, 9.5, ' text-anchor="middle"'))
    return "".join(out), bottom + 26


def legend(top):
    out, x = [], LEFT
    for part in PARTS:
        out.append(f'<rect x="{x}" y="{top}" width="12" height="12" fill="{COLOUR[part]}"/>')
        out.append(text(x + 17, top + 10, MEANING[part]))
        x += 40 + round(6.1 * len(MEANING[part]))
    out.append(f'<rect x="{x}" y="{top}" width="12" height="12" fill="{COLOUR["pass"]}"/>')
    out.append(f'<rect x="{x + 12}" y="{top}" width="12" height="12" fill="{COLOUR["pass2"]}"/>')
    out.append(text(x + 29, top + 10, "passes"))
    return "".join(out)


def svg(found):
    """A panel of all steps, and an enlarged one around the end of the pass in the middle."""
    middle = found[len(found) // 2].end
    out, top = [legend(2)], 34
    for title, low, high, zero in (
        (f"{len(found)} steps, µs", min(found[0].at, found[0].begin), max(one.end for one in found), 0),
        ("enlarged: around the end of a pass, µs from that end", middle - BEFORE, middle + AFTER, middle),
    ):
        out.append(text(LEFT, top + 4, title, SOFT, 9.5))
        body, top = lanes(found, top + 12, low, high, zero)
        out.append(body)
        top += 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:g}" width="{WIDTH}" height="{top:g}"'
        f' role="img" aria-label="Activity of host and device over {len(found)} steps" font-family="{SANS}">'
        f'{"".join(out)}</svg>'
    )


def figure(page, rows):
    """Draws nothing if there is no such row: the table above also has the device's idle time."""
    for record in rows.find("throughput", where=lambda r: r.case.endswith("_timeline") and r.get("ok") is not False):
        found = steps(record)
        if len(found) < 2 or any(one.end <= one.begin for one in found):
            continue
        work = [sum(one.times) - one.times[PARTS.index("wait")] for one in found]
        page.figure(
            svg(found),
            f"Host and device over the last {len(found)} steps of {record.case.removesuffix('_timeline')}. Each pass is"
            " launched while the previous one runs. The longest gap between two passes on the device is"
            f" {fixed(max(gaps(found)), 1)} µs; the host works {fixed(sorted(work)[len(work) // 2], 1)} µs per step"
            " (median).",
            [">host from, µs"] + [f">{MEANING[part]}" for part in PARTS] + [">pass from", ">to"],
            [[fixed(v, 1) for v in (one.at, *one.times, one.begin, one.end)] for one in found],
            of=record.get("gpu") or "",
        )
