# SPDX-License-Identifier: Apache-2.0
"""Section of the report: the map of the chip, from records of `cairn validate --json`.

Each row of the map is a GPC and each cell an SM. Rates are in percent of the GPC's median, so that a slow SM stands out;
latencies are the median over the SM's peers.
"""

import statistics
from collections import defaultdict

from base import plots
from base.page import num


def cells(units, values):
    """[(GPC, [(SM, value)])] with the SMs of each GPC in order; SMs of no known GPC come last."""
    groups = defaultdict(list)
    for place, gpc in sorted(units.items()):
        if place in values:
            groups[gpc if gpc >= 0 else 1 << 30].append((place, values[place]))
    return sorted(groups.items())


def rates(record):
    """{SM: percent above the median of its GPC}, of a rate.* record."""
    groups = defaultdict(list)
    for unit in record.get("units", []):
        groups[unit["gpc"]].append(unit["cycles"])
    middle = {gpc: statistics.median(cycles) for gpc, cycles in groups.items()}
    return {u["place"]: 100 * (u["cycles"] / middle[u["gpc"]] - 1) for u in record.get("units", [])}


def latencies(record):
    readers = defaultdict(list)
    for reader, _, cycles in record.get("latency", []):
        readers[reader].append(cycles)
    return {reader: statistics.median(cycles) for reader, cycles in readers.items()}


def links(record):
    """[(GPU, GB/s alone, both ways, together)] of a record of `links`; the last is None between two GPUs."""
    modes = [record.get("links", {}).get(m, {}) for m in ("alone", "both_ways", "together")]
    peers = sorted(modes[0], key=int)
    return [(to, *(statistics.median(m[to]) if m.get(to) else None for m in modes)) for to in peers]


def section(page, ctx):
    found = {r.case: r for r in ctx.rows.find("validate")}
    rate = next((r for case, r in found.items() if case.startswith("rate.") and r.get("units")), None)
    if rate is None:
        return
    units = {u["place"]: u["gpc"] for u in rate.get("units")}
    verdicts = {f["place"]: f["verdict"] for r in found.values() for f in r.get("findings", []) if "place" in f}
    slower = rates(rate)
    maps = [(f"{rate.case}: % above the GPC's median", cells(units, slower))]
    pairs = found.get("dsmem.pairs")
    latency = latencies(pairs) if pairs else {}
    if latency:
        maps.append(("median latency of a peer's shared memory, cycles", cells(units, latency)))
    page.section("Validation: the map of the chip", "validate")
    page.figure(
        plots.chip(maps, verdicts),
        f"The {num(len(units))} SMs of the GPU validated last, by GPC. Framed SMs have findings"
        f" ({num(len(verdicts))} here).",
        [">SM", ">GPC", ">% above the median", ">latency", "verdict"],
        [
            [
                str(p),
                str(g) if g >= 0 else "unknown",
                f"{slower[p]:.2f}",
                num(latency.get(p)),
                verdicts.get(p, "pass"),
            ]
            for p, g in sorted(units.items())
        ],
    )
    ends = links(found["links"]) if "links" in found else []
    if ends:
        page.table(
            f"The links of GPU {found['links'].get('device')} to the others of its node, GB/s.",
            [">to GPU", ">alone", ">both ways", ">all together"],
            [[to, *(num(v) for v in rates_of)] for to, *rates_of in ends],
        )
