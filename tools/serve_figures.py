#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the targets of `cairn serve`: python3 tools/serve_figures.py BUILD RECORDING.jsonl [PART]... [OPTION]...

Starts the server on a port of its own, loads it with `cairn bench serve`, and appends one row per part, {"v": 1, "op":
"serve", "case": SHAPE_PART, "ok": all answers were complete, "reached": the target below was reached, ...}; times are
those of bench_serve.h, in ns. On an H200 all parts take less than nine minutes.

  batch1       one request at a time: time per token within 5% of that of `cairn generate`, run just before
  prefix       time to first token of prompts whose first 8128 tokens are in the cache: under a tenth of that of others
  online       saturation by a closed loop, then Poisson arrivals at 80% of it: p99 of TPOT under twice its mean
  connections  1000 idle connections, 256 streams, 20 stalled readers, for --seconds: no token lost, constant memory
  kill         the worker is killed (-9) 20 times under load: every request is answered or failed cleanly, the server
               recovers within the time of the first load (plus a second), descriptors and memory do not grow
  ranks        only if named: of a server with --tp N or --pp N, random ranks are killed or stopped in turn --kills times under
               load: every client is answered within a second of the server's notice (503 of /health)
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

PARTS = ("batch1", "prefix", "online", "connections", "kill")
MORE_PARTS = ("ranks",)
CLEAN = {"failed_status", "failed_event"}  # outcomes of requests that failed cleanly


def arguments():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("build")
    a.add_argument("recording")
    a.add_argument("parts", nargs="*", default=[], metavar="PART")
    a.add_argument("--impl", default="cuda")
    a.add_argument("--shape", default="llama3-8b", help="model shape (ignored with --impl cpu, which serves the embedded model)")
    a.add_argument("--kill-shape", default="llama32-1b", help="model shape of the part kill, which loads it 21 times")
    a.add_argument("--batch", type=int, default=256)
    a.add_argument("--pages", type=int, help="pages of the KV cache (default: nine tenths of the device's memory)")
    a.add_argument("--seconds", type=float, default=120, help="duration of the part connections")
    a.add_argument("--online-seconds", type=float, default=75)
    a.add_argument("--kills", type=int, default=20)
    a.add_argument("--tp", type=int, default=2, help="ranks of the part ranks")
    a.add_argument("--pp", type=int, default=0, help="stages of the part ranks, instead of --tp")
    got = a.parse_args()
    got.parts = got.parts or list(PARTS)
    for part in got.parts:
        if part not in PARTS + MORE_PARTS:
            a.error(f"unknown part '{part}'; the parts are {', '.join(PARTS + MORE_PARTS)}")
    got.host = got.impl != "cuda"
    if got.host:
        got.shape = got.kill_shape = None
        got.batch = min(got.batch, 64)
    return got


ARGS = arguments()
os.environ["CAIRN_BUILD"] = ARGS.build
sys.path.insert(0, str(Path(__file__).resolve().parent))
from server_under_test import PROGRAM, Server, why_no_server  # noqa: E402

SCRATCH = tempfile.TemporaryDirectory()
SMALL = ARGS.host  # the model and the machine are too small for the sizes below


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def machine():
    """Members common to all rows: where they were measured."""
    source = run([PROGRAM, "version"]).stdout.split()[-1]
    found = {"impl": ARGS.impl, "source": source}
    if not ARGS.host:
        query = "--query-gpu=name,driver_version,clocks.sm"
        line = run(["nvidia-smi", query, "--format=csv,noheader,nounits"]).stdout.splitlines()[0]
        gpu, driver, mhz = (x.strip() for x in line.split(","))
        found |= {"gpu": gpu, "driver": driver, "sm_mhz": int(mhz)}
    return found


def device_bytes():
    if ARGS.host:
        return 0
    line = run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]).stdout.splitlines()[0]
    return int(line) << 20


def row(part, shape, ok, reached, **members):
    name = f"{(shape or 'embedded').replace('-', '_')}_{part}"
    record = {"v": 1, "op": "serve", "case": name, "ok": bool(ok), "reached": bool(reached), **members, **machine()}
    with open(ARGS.recording, "a", encoding="utf-8") as f:
        f.write(json.dumps(record) + "\n")
    shown = {k: v for k, v in members.items() if not isinstance(v, (list, dict))}
    print(
        f"{'ok' if ok else 'NOT OK'}, {'reached' if reached else 'NOT REACHED'}: {name} {json.dumps(shown)}", flush=True
    )


JOULES = "cairn:gpu_energy_joules_total"


class Load:
    """A running `cairn bench serve`; wait() returns its record and its requests."""

    def __init__(self, server, *options):
        self.server, self.joules = server, server.metric(JOULES)
        self.json = tempfile.mktemp(dir=SCRATCH.name)
        self.requests = self.json + ".requests"
        vocab = "400" if ARGS.host else "32000"
        command = [PROGRAM, "bench", "serve", "--url", server.url, "--vocab", vocab, "--json", self.json]
        command += ["--requests", self.requests, *map(str, options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait(self):
        out = self.process.communicate()[0]
        print("".join(f"# {line}\n" for line in out.splitlines()), end="", flush=True)
        if not os.path.exists(self.json) or not os.path.getsize(self.json):
            raise RuntimeError(out)
        with open(self.json, encoding="utf-8") as f:
            record = json.loads(f.readlines()[-1])
        joules = self.server.metric(JOULES) - self.joules
        if joules > 0:  # the server has a card with an energy counter, which it reads once a second
            record["joules"] = round(joules, 1)
            record["mj_per_token"] = round(1e3 * joules / max(record["prompt_tokens"] + record["output_tokens"], 1), 3)
        with open(self.requests, encoding="utf-8") as f:
            return record, [json.loads(line) for line in f]


def timed(record, *names):
    """These members of the load generator's record, and those that every row has."""
    base = ("n", "min_ns", "median_ns", "p95_ns", "sent", "answered", "rate", "concurrency", "max_in_flight", "seed")
    kinds = tuple(k for k in record if k.startswith(("failed_", "status_")))
    return {k: record[k] for k in base + names + kinds if k in record}


def spread(name):
    return tuple(f"{name}_{x}_ns" for x in ("mean", "p50", "p90", "p99", "max"))


ALL = spread("ttft") + spread("tpot") + spread("itl") + spread("e2e") + spread("late")
RATES = ("requests_per_s", "output_tokens_per_s", "tokens_per_s", "prompt_tokens", "output_tokens", "duration_ns",
         "joules", "mj_per_token")  # fmt: skip


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2 if values else 0


def bare_step():
    """Time per token without a server: the record of `cairn generate` with the same prompt and length."""
    path = os.path.join(SCRATCH.name, "generate")
    prompt, new = (128, 64) if SMALL else (1024, 256)
    what = ["--shape", ARGS.shape] if ARGS.shape else ["--ignore-eos"]
    command = [PROGRAM, "generate", "--impl", ARGS.impl, *what, "--prompt-tokens", str(prompt)]
    got = run([*command, "--max-new-tokens", str(new), "--repeat", "3", "--json", path])
    if got.returncode:
        raise RuntimeError(got.stderr)
    with open(path, encoding="utf-8") as f:
        return next(r for r in map(json.loads, f) if r["op"] == "generate")


def batch1(server, bare):
    prompt, new = (128, 64) if SMALL else (1024, 256)
    record, _ = Load(
        server, "--num-prompts", 10, "--warm-up", 2, "--input-len", prompt, "--output-len", new, "--seed", 11
    ).wait()
    share = record["median_ns"] / bare["median_ns"]
    members = timed(record, *ALL, *RATES)
    members |= {
        "bare_median_ns": bare["median_ns"],
        "over_bare": round(share, 4),
        "itl_over_bare": round(record["itl_p50_ns"] / bare["median_ns"], 4),
    }
    row("batch1", ARGS.shape, record["ok"], share < 1.05, **members)


def prefix(server):
    shared, own, new = (960, 16, 8) if SMALL else (8128, 16, 16)
    misses = Load(
        server, "--num-prompts", 10, "--warm-up", 1, "--input-len", shared + own, "--output-len", new, "--seed", 21
    )
    record, missed = misses.wait()
    again, hit = Load(
        server, "--num-prompts", 11, "--shared-prefix", shared, "--input-len", own, "--output-len", new, "--seed", 22
    ).wait()
    took = [[r["first_ns"] - r["due_ns"] for r in rs] for rs in (missed, hit[1:])]  # the first one fills the cache
    cached = min((r["cached"] for r in hit[1:]), default=0)
    share = median(took[1]) / median(took[0])
    ok = record["ok"] and again["ok"] and cached >= shared - 16 and max(r["cached"] for r in missed) <= 0
    row(
        "prefix8k" if not SMALL else "prefix", ARGS.shape, ok, share < 0.1, n=len(took[1]), min_ns=min(took[1]),
        median_ns=median(took[1]), p95_ns=max(took[1]), miss_min_ns=min(took[0]), miss_median_ns=median(took[0]),
        miss_max_ns=max(took[0]), hit_over_miss=round(share, 4), prompt_tokens=shared + own, cached_tokens=cached,
    )  # fmt: skip


def online(server):
    seconds = ARGS.online_seconds
    lengths = ("--lengths", "alpaca", "--max-len", 1000) if SMALL else ("--lengths", "sharegpt")
    closed = Load(
        server, *lengths, "--num-prompts", 100000, "--duration", seconds / 2, "--concurrency", ARGS.batch, "--seed", 31
    )
    full, requests = closed.wait()
    begin, end = seconds / 6 * 1e9, seconds / 2 * 1e9  # when the batch is full, until the load ends
    rate = sum(begin <= r["end_ns"] < end and r["outcome"] == "ok" for r in requests) / ((end - begin) * 1e-9)
    tokens = sum(r["output_tokens"] for r in requests if begin <= r["end_ns"] < end and r["outcome"] == "ok")
    record, _ = Load(
        server,
        *lengths,
        "--num-prompts",
        max(20, int(0.8 * rate * seconds)),
        "--rate",
        f"{0.8 * rate:.4f}",
        "--seed",
        32,
    ).wait()
    share = record["tpot_p99_ns"] / record["tpot_mean_ns"] if record["tpot_mean_ns"] else 0
    row(
        "online80", ARGS.shape, record["ok"] and not any(k.startswith("failed_") for k in full),
        0 < share < 2, **timed(record, *ALL, *RATES), p99_over_mean=round(share, 4), saturation_requests_per_s=round(rate, 3),
        saturation_output_tokens_per_s=round(tokens / ((end - begin) * 1e-9), 1), saturation_concurrency=ARGS.batch,
    )  # fmt: skip


def status_bytes(pid, *keys):
    """The sum of these lines in a process's status; 0 if the process does not exist."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            return sum(int(line.split()[1]) << 10 for line in f if line.startswith(keys))
    except OSError:
        return 0


OWN = ("RssAnon:", "RssShmem:")  # memory allocated by a process, without library pages, which are mapped on first use


def count_fds(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Watch(threading.Thread):
    """
    Samples once a second, for this time, the memory of the front end and the worker: their own, and the worker's file
    pages. Ends before the load does: towards its end fewer sequences run, and graphs captured for them take memory.
    """

    def __init__(self, server, seconds):
        super().__init__(daemon=True)
        self.server = server
        self.end = time.monotonic() + seconds
        self.front, self.worker, self.files, self.fds = [], [], [], []
        self.over = threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(1) and time.monotonic() < self.end:
            workers = self.server.worker()
            self.front.append(status_bytes(self.server.process.pid, *OWN))
            self.worker.append(sum(status_bytes(p, *OWN) for p in workers))
            self.files.append(sum(status_bytes(p, "RssFile:") for p in workers))
            self.fds.append(count_fds(self.server.process.pid))

    def stop(self):
        self.over.set()
        self.join()


def grown(samples):
    """Maximum of the last third minus maximum of the second; the first third is warm-up."""
    third = len(samples) // 3
    return max(samples[2 * third :], default=0) - max(samples[third : 2 * third], default=0)


def course(samples, points=24):
    """Samples in MB at evenly spaced times."""
    at = sorted({round(i * (len(samples) - 1) / (points - 1)) for i in range(points)}) if samples else []
    return [round(samples[i] / 1e6, 1) for i in at]


def has_logprobs(server):
    import urllib.request

    body = json.dumps({"prompt": [1, 2], "max_tokens": 1, "logprobs": 0}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


def connections(server):
    streams, idle, stalled = (32, 1000, 20) if SMALL else (256, 1000, 20)
    count = ("--count-tokens",) if has_logprobs(server) else ()
    before = device_bytes()
    watch = Watch(server, ARGS.seconds)
    record, _ = Load(
        server, "--num-prompts", 100000, "--duration", ARGS.seconds, "--concurrency", streams, "--idle", idle,
        "--stalled", stalled, "--stalled-len", 1800 if SMALL else 6000, "--input-len", 64, "--output-len", 200,
        "--timeout", 120, *count, "--seed", 41,
    ).wait()  # fmt: skip
    watch.stop()
    growth = {"front_grown_bytes": grown(watch.front), "worker_grown_bytes": grown(watch.worker)}
    flat = all(
        g < (4 << 20) + 0.01 * max(rss, default=0) for g, rss in zip(growth.values(), (watch.front, watch.worker))
    )
    row(
        "connections", ARGS.shape, record["ok"], record["ok"] and flat, **timed(record, *ALL, *RATES), **growth,
        idle=idle, stalled=stalled, idle_closed=record["idle_closed"], stalled_closed=record["stalled_closed"],
        counted=bool(count), front_max_bytes=max(watch.front, default=0), worker_max_bytes=max(watch.worker, default=0),
        device_grown_bytes=device_bytes() - before, max_fds=max(watch.fds, default=0), seconds=ARGS.seconds,
        front_mb=course(watch.front), worker_mb=course(watch.worker), worker_files_mb=course(watch.files),
    )  # fmt: skip


def until_ready(server, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.get("/ready")[0] == 200:
            return True
        time.sleep(0.01)
    return False


def kill(options):
    begun = time.monotonic()
    with Server("--quiet", *options, impl=ARGS.impl, wait=300) as server:
        load_s = time.monotonic() - begun  # of program and model
        pid = server.process.pid
        Load(server, "--num-prompts", 64, "--concurrency", 64, "--output-len", 64).wait()
        before = status_bytes(pid, *OWN), count_fds(pid), device_bytes()
        seconds = ARGS.kills * (2 * load_s + 3) + 30
        load = Load(
            server, "--num-prompts", 100000, "--rate", 10 if SMALL else 40, "--duration", f"{seconds:.1f}", "--input-len",
            64, "--output-len", 100, "--timeout", 60, "--seed", 51,
        )  # fmt: skip
        back = []
        for _ in range(ARGS.kills):
            time.sleep(1)
            workers = server.worker()
            at = time.monotonic()
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            while server.worker() == workers and time.monotonic() < at + 10:
                time.sleep(0.001)
            if not until_ready(server, 10 * load_s + 30):
                break
            back.append(time.monotonic() - at)
        time.sleep(1)
        load.process.send_signal(signal.SIGINT)  # ends the load: it sends no more requests and reports
        record, _ = load.wait()
        after_load, _ = Load(server, "--num-prompts", 64, "--concurrency", 64, "--output-len", 64, "--seed", 52).wait()
        time.sleep(1)
        after = status_bytes(pid, *OWN), count_fds(pid), device_bytes()
        restarts = server.metric("cairn:worker_restarts_total")
        waiting = server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")
    unclean = {k: v for k, v in record.items() if k.startswith("failed_") and k not in CLEAN}
    ok = not unclean and len(back) == ARGS.kills == restarts and after_load["ok"] and waiting == 0
    leak = {
        "front_grown_bytes": after[0] - before[0],
        "fds_grown": after[1] - before[1],
        "device_grown_bytes": after[2] - before[2],
    }
    tidy = leak["front_grown_bytes"] < 16 << 20 and leak["fds_grown"] <= 0 and leak["device_grown_bytes"] < 64 << 20
    back_ns = [int(s * 1e9) for s in back] or [0]
    row(
        "kill9", ARGS.kill_shape, ok, ok and tidy and max(back) < load_s + 1, n=len(back), min_ns=min(back_ns),
        median_ns=int(median(back_ns)), p95_ns=max(back_ns), load_ns=int(load_s * 1e9), kills=ARGS.kills, restarts=int(restarts),
        **{k: v for k, v in timed(record).items() if k.startswith(("sent", "answered", "failed_", "status_"))}, **leak,
    )  # fmt: skip


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(child) for child in f.read().split()]


class Client(threading.Thread):
    """Asks without end and notes (begin, end, status) of each request; status 0: no answer."""

    def __init__(self, server, prompt_tokens, output_tokens):
        super().__init__(daemon=True)
        self.url, self.asked, self.stops = server.url + "/v1/completions", [], False
        body = {"prompt": [5] * prompt_tokens, "max_tokens": output_tokens, "ignore_eos": True}
        self.body = json.dumps(body).encode()

    def run(self):
        while not self.stops:
            begin, status = time.monotonic(), 0
            request = urllib.request.Request(self.url, self.body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    status = answer.status if json.load(answer)["usage"]["completion_tokens"] else 0
            except urllib.error.HTTPError as e:
                status = e.code if "error" in json.load(e) else 0
            except (OSError, ValueError, KeyError):
                pass
            self.asked.append((begin, time.monotonic(), status))
            if status == 503:
                time.sleep(0.02)


def ranks(options):
    """The server with ranks; a rank is chosen by a fixed seed, killed in even turns and stopped in odd ones."""
    chance = random.Random(23)
    notices, noticed = [], []  # times of /health's 503; seconds from the signal to it
    shared = ("--pp", str(ARGS.pp)) if ARGS.pp else ("--tp", str(ARGS.tp))
    with Server("--quiet", *shared, *options, impl=ARGS.impl, wait=300) as server:
        clients = [Client(server, 64, 400) for _ in range(8)]
        for client in clients:
            client.start()
        for turn in range(ARGS.kills):
            time.sleep(1.5)
            worker = server.worker()[0]
            group = [worker, *children(worker)]
            victim = chance.choice(group)
            # a stopped rank 0 is noticed by the others, and killed by one of them
            os.kill(victim, signal.SIGSTOP if turn % 2 else signal.SIGKILL)
            at = time.monotonic()
            while server.get("/health")[0] != 503 and time.monotonic() < at + 60:
                time.sleep(0.001)
            notices.append(time.monotonic())
            noticed.append(notices[-1] - at)
            if not until_ready(server, 60):
                break
        for client in clients:
            client.stops = True
        for client in clients:
            client.join(120)
        restarts = server.metric("cairn:worker_restarts_total")
        waiting = server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")
        left = len(server.worker()) - 1
    asked = [a for client in clients for a in client.asked]
    after = [end - at for at in notices for begin, end, _ in asked if begin < at < end]
    statuses = {str(code): sum(status == code for _, _, status in asked) for code in (0, 200, 500, 503)}
    ok = len(notices) == ARGS.kills == restarts and sum(statuses.values()) == len(asked) and not statuses["0"]
    name = f"stages{ARGS.pp}" if ARGS.pp else f"ranks{ARGS.tp}"
    row(
        name, ARGS.kill_shape, ok and not waiting and not left, ok and max(after, default=0) < 1,
        kills=ARGS.kills, restarts=int(restarts), answered_after_ns=int(max(after, default=0) * 1e9),
        noticed_killed_ns=int(max(noticed[::2], default=0) * 1e9), noticed_stopped_ns=int(max(noticed[1::2], default=0) * 1e9),
        **{f"status_{code}": n for code, n in statuses.items()},
    )  # fmt: skip


def model_options(shape):
    pages = ("--pages", str(ARGS.pages)) if ARGS.pages else ()
    return ("--batch", str(ARGS.batch), *pages, *(("--shape", shape) if shape else ()))


def main():
    if why := why_no_server():
        print(f"serve_figures: {why}", file=sys.stderr)
        return 2
    bare = bare_step() if "batch1" in ARGS.parts else None  # before the server allocates the memory
    todo = [p for p in ARGS.parts if p not in ("kill", "ranks")]
    failed = 0
    if todo:
        with Server("--quiet", *model_options(ARGS.shape), impl=ARGS.impl, wait=300) as server:
            for part in todo:
                begun = time.monotonic()
                try:
                    {
                        "batch1": lambda s: batch1(s, bare),
                        "prefix": prefix,
                        "online": online,
                        "connections": connections,
                    }[part](server)
                except Exception as e:  # go on with the other parts
                    print(f"NOT OK: {part}: {type(e).__name__}: {e}", flush=True)
                    failed += 1
                print(f"# {part}: {time.monotonic() - begun:.1f} s", flush=True)
    if "kill" in ARGS.parts:
        kill((*model_options(ARGS.kill_shape), *(() if SMALL else ("--max-context", "8192"))))
    if "ranks" in ARGS.parts:
        ranks((*model_options(ARGS.kill_shape), *(() if SMALL else ("--max-context", "8192"))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
