# SPDX-License-Identifier: Apache-2.0
"""Passes of a model whose attention is on another GPU: measured, and simulated (cairn disagg-plan --figures)."""

KILLED = ("disagg_fault", "serve_attention", "serve_prefill")  # operations with rows of kills
COUNTED = {*KILLED, "slices"}  # rows of the CPU
KNOWN = {*COUNTED, "disagg_sim"}  # operations with a place in the report


def measured_passes(rows):
    """{(attention workers, lanes, requests of a lane): microseconds of a pass of every lane}, of two GPUs."""
    found = {}
    for r in rows.find("disagg_layer", where=lambda r: r.number("whole_us") and r.number("requests") is not None):
        found[(0, 1, int(r.need("requests")))] = r.need("whole_us")
        found[(1, 1, int(r.need("requests")))] = r.need("remote_us")
    for r in rows.find("disagg", where=lambda r: r.number("one_lane") and r.number("requests_a_lane") is not None):
        requests = int(r.need("requests_a_lane"))
        for key, all_requests, rate in (
            ((0, 1, requests), requests, "whole"),
            ((1, 1, requests), requests, "one_lane"),
            ((1, 1, 2 * requests), 2 * requests, "one_lane_of_all"),
            ((1, 2, requests), 2 * requests, "two_lanes"),
        ):
            found[key] = all_requests * 1e6 / r.need(rate)
    return found


def runs(rows):
    """[((attention workers, lanes, requests of a lane), measured us, simulated us)] of what has both."""
    measured = measured_passes(rows)
    out = []
    for r in rows.find("disagg_sim", where=lambda r: r.case.startswith("run_")):
        key = tuple(int(r.need(k)) for k in ("attention_workers", "lanes", "requests_a_lane"))
        if key in measured:
            out.append((key, measured[key], r.need("pass_us")))
    return out
