# SPDX-License-Identifier: Apache-2.0
"""Synthetic records, and code shared by the tests of the report."""

import contextlib
import io
import json
import os
import re
import tempfile
import unittest
from html.parser import HTMLParser
from math import log2
from unittest import mock

import report
from base import plots
from claims import all_claims, fused_claims
from sections import cards
from base.records import Ceilings, Rows, parse_line

SIZES = (2, 4, 8, 16)
CLAIMS = (
    *(f"CF-{i}" for i in range(1, 14)), *(f"LA-{i}" for i in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11)), "LA-4", *(f"FI-{i}" for i in range(1, 8)), *(f"AT-{i}" for i in range(1, 15)),
    *(f"NF-{i}" for i in range(1, 9)), "NF-12", "NF-9", "NF-10", "NF-11",
)  # fmt: skip
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
    """A complete set of records; with the default arguments every claim holds."""
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
    out += [
        moved(op, case, num_bytes, gbps, "flashinfer", impl_version="0.6.17", **more)
        for op, case, num_bytes, gbps, more in (
            ("rmsnorm", "rows128_dim4096_bf16", 2 << 20, 900, {}),
            ("silu_mul", "rows128_dim14336_bf16", 11 << 20, 1900, {}),
            ("rope", "rows128_heads32_8_dim128_bf16", 2 << 20, 900, {}),
            *(("sample", f"rows{n}_vocab128256_topk50_topp90", n << 19, 20.0 * n, {"rules": "peer"}) for n in (1, 64, 256)),
        )
    ]
    # 66 rounds of 16 KiB, 258 of 256 B; the hardware counter gives slightly more than the payload
    out.append(counted("cluster_reduce", "size4_len4096_f32_sum_tree", "cuda", 1, 0, 66 * 131072 * (1.05 + extra_bytes)))
    out.append(counted("cluster_gather", "size4_len64_f32_tree", "cuda", 1, 0, 258 * 3072 * (1.05 + extra_bytes)))
    return out


def counted(op, case, impl, launches, stored, sent=0):
    """A record as reports/traffic.py writes it, without times."""
    return {
        "v": 1, "op": "traffic", "case": f"{op}_{case}", "impl": impl, "gpu": "NVIDIA H200", "driver": "580.159",
        "bytes": 10**6, "launches": launches, "dram_read_bytes": 10**6, "dram_write_bytes": 5000, "l2_bytes": 2 * 10**6,
        "store_bytes": stored, "dsmem_counted_bytes": sent,
    }


def fused(holds):
    """Rows of the fused operations; CF-6 to CF-13 all hold, or none of them does."""
    out = []

    def pair(op, case, ns, gain, other="unfused", **more):
        out.append(raw(op, case, ns=ns, **more))
        out.append(raw(op, case, other, ns * gain))

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
    for op, case in fused_claims.MODULES + fused_claims.STEPS + fused_claims.LAYERS:
        out.append(counted(op, case, "cuda", 2, 1000))
        out.append(counted(op, case, "unfused", 16 if holds else 15, 1001 if holds else 1000))
    for heads, best in ((32, 4), (64, 4), (128, 2)):
        for n in (1,) + SIZES:
            out.append(raw("cluster_attn", f"heads{heads}_b1_kv4096_token_c{n}", ns=900 if (n == best) == holds else 1000))
    out.append(raw("generate", "llama2_7b_b1_kv1024", ns=4e6, first_token_ns=2e7 if holds else 2e9))
    return out


def rows_of(records):
    return Rows(parse_line(json.dumps(r)) for r in records)


def claims_of(records):
    rows = rows_of(records)
    return {c.id: c for c in all_claims.claims(rows, Ceilings(rows))}


def targets_of(records):
    rows = rows_of(records)
    return {t.what: t for t in all_claims.targets(rows, Ceilings(rows))}


def page_of(measured, recorded=None):
    return report.build(rows_of(measured), [] if recorded is None else [recording(recorded)])


def recording(records, name="reports/h200.jsonl"):
    return cards.Recording(name, rows_of(records))


def on_card(gpu, records, speed=1.0):
    """The same rows of another card, slower by a factor of 1 / speed; host rows stay as they are."""
    out = []
    for r in records:
        if r.get("driver"):
            r = {**r, "gpu": gpu}
            r.update({k: r[k] / speed for k in ("min_ns", "median_ns", "p95_ns", "warm_ns") if r.get(k)})
            r.update({k: r[k] * speed for k in ("gbps", "tflops") if r.get(k)})
        out.append(r)
    return out


class Balance(HTMLParser):
    """Checks that every tag is closed, in the right order."""

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
        patch = mock.patch.object(plots, "plt", None)
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
        """assertIn without printing the whole page."""
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
