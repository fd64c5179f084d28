#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kill workers under load: python3 tools/worker_faults.py BUILD [--role ROLE] [--kills N] [--streams N] [--workers N]

Starts `cairn serve` on table cpu with the embedded model and attention, model or prefill workers, asks it --streams prompts, once
undisturbed and then again and again while processes of the role are killed (-9), stopped, or (as root) cut off, in turn. The lead
is the server's process with engine and model; to cut it off ends its connections with all workers. Every answer must be that of
the undisturbed server, which has no prefill workers. Prints for each kind how long it took until a loss was noticed and until it
was made good, and exits with 1 if an answer was lost or changed, or if processes, descriptors or memory have not come back.
"""

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# For each role: `named` matches the line in which the server lists the workers' processes. `lost` matches the line that reports a
# loss, with the seconds since it was noticed. `ended` matches the line that reports the end of the lead. `options` start the
# workers; their number follows.
ROLES = {
    "attention": {
        "named": r"attention workers, processes ([\d, ]+)",
        "lost": r"([\d.]+) s later, running answers are computed again",
        "options": ["--attention-keys", "all", "--attention-workers"],
    },
    "prefill": {
        "named": r"prefill workers, processes ([\d, ]+)",
        "lost": r"computed here, for ([\d.]+) s so far",
        "options": ["--prefill-min", "64", "--prefill-workers"],
    },
}
ROLES["model"] = {
    **ROLES["attention"],
    "named": r"model workers, processes ([\d, ]+)",
    "options": ["--attention-workers", "2", "--attention-keys", "all", "--model-workers"],
}
ROLES["lead"] = {**ROLES["attention"], "ended": "the worker has failed"}


def arguments():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("build")
    a.add_argument("--role", choices=list(ROLES), default="attention")
    a.add_argument("--kills", type=int, default=20)
    a.add_argument("--streams", type=int, default=32)
    a.add_argument("--workers", type=int, default=2)
    return a.parse_args()


class Server:
    def __init__(self, opt, workers=True):
        self.role = ROLES[opt.role]
        command = [f"{opt.build}/cairn", "serve", "--impl", "cpu", "--port", "0", "--batch", "16", "--quiet", "--pages", "512"]
        # the fused step rounds otherwise than the operations, and which rows it computes depends on what is cached
        command += ["--decode", "unfused"] if opt.role == "prefill" else []
        command += ["--resume-limit", str(opt.kills)] if opt.role == "lead" else []
        command += [*self.role["options"], str(opt.workers + (opt.role == "model"))] if workers else []
        env = {"OMP_NUM_THREADS": "1", **os.environ}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.url = self.process.stdout.readline().strip().split()[-1]
        self.lines, self.told, self.salts = [], threading.Condition(), itertools.count()
        threading.Thread(target=self.read, daemon=True).start()
        self.await_line("ready:", 0)

    def read(self):
        for line in self.process.stderr:
            with self.told:
                self.lines.append((time.monotonic(), line.rstrip()))
                self.told.notify_all()

    def await_line(self, pattern, after, timeout=60):
        """Returns (time, match) of the first line from number `after` on that matches."""
        end = time.monotonic() + timeout
        with self.told:
            while True:
                for when, line in self.lines[after:]:
                    if found := re.search(pattern, line):
                        return when, found
                if not self.told.wait(end - time.monotonic()):
                    raise TimeoutError(f"no line says {pattern}")

    def workers(self):
        with self.told:
            last = [found for _, line in self.lines if (found := re.search(self.role["named"], line))][-1]
        return [int(pid) for pid in last[1].split(",")]

    def lead(self):
        with self.told:
            return int([found for _, line in self.lines if (found := re.search(r"\(worker (\d+)", line))][-1][1])

    def ask(self, i):
        prompt = f"What is {i} + {i * 3 % 17}?\n" * (12 if self.role is ROLES["prefill"] else 1)
        salt = str(next(self.salts))  # no prompt is found in the cache
        body = {"prompt": prompt, "cache_salt": salt, "max_tokens": 60, "seed": i, "temperature": 1, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return json.load(answer)["choices"][0]["text"]
            except OSError as e:
                if getattr(e, "code", None) != 503:  # while the lead starts again, new requests are asked to come back
                    return f"failed: {e} {e.read().decode() if hasattr(e, 'read') else ''}"
                time.sleep(0.01)


def cut_off(pid, peer=None):
    """Closes the TCP connections of a process, or those with `peer`, as a broken network would. Returns when; None: not."""
    begin = None
    try:  # needs root
        listing = subprocess.run(["ss", "-tnpH"], capture_output=True, text=True, check=False).stdout.splitlines()
        ours = [line.split()[3:5] for line in listing if f"pid={pid}," in line]
        theirs = [line.split()[4:2:-1] for line in listing if f"pid={peer}," in line]
        for local, remote in ours:
            if peer is None or [local, remote] in theirs:
                now = time.monotonic()
                closed = subprocess.run(["ss", "-K", "src", local, "dst", remote], capture_output=True, text=True, check=False)
                begin = begin or (now if remote in closed.stdout else None)
    except OSError:
        pass
    return begin


def lose(server, number):
    """Loses one process; returns how, after how many ms it was noticed, and after how many the server went on."""
    pids, of_lead = server.workers(), "ended" in server.role
    kind = ("killed", "stopped", "cut off")[number % 3]
    pid = server.lead() if of_lead else pids[number % len(pids)]
    with server.told:
        after = len(server.lines)
    begin = cut_off(pid, None if of_lead else server.lead()) if kind == "cut off" else None
    kind = kind if begin or kind == "stopped" else "killed"
    begin = begin or time.monotonic()
    if kind != "cut off":
        os.kill(pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
    ends = of_lead and kind != "cut off"
    when, found = server.await_line(server.role["ended" if ends else "lost"], after)
    noticed = when - begin - (0 if ends else float(found[1]))
    all_back = server.role["named"].replace(r"([\d, ]+)", r"\d+" + r", \d+" * (len(pids) - 1))
    when, _ = server.await_line(all_back + "$|" + all_back + ";", after)
    return kind, noticed * 1e3, (when - begin) * 1e3


def footprint(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return len(os.listdir(f"/proc/{pid}/fd")), int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def main():
    opt = arguments()
    plain = Server(opt, workers=opt.role != "prefill")
    want = [plain.ask(i) for i in range(opt.streams)]
    plain.process.send_signal(signal.SIGTERM)
    bad = sum(text.startswith("failed") for text in want) + bool(plain.process.wait())
    server = Server(opt)
    server.await_line(server.role["named"], 0)
    with ThreadPoolExecutor(opt.streams) as pool:  # afterwards it has all the memory that it needs
        bad += sum(map(str.__ne__, pool.map(server.ask, range(opt.streams)), want))
    before, stop, answers, times = footprint(server.lead()), threading.Event(), [0, 0], {}

    def stream(i):
        while not stop.is_set():
            got = server.ask(i)
            same = got == want[i]
            if not same:
                print(f"stream {i}: {got!r} instead of {want[i]!r}")
            answers[0] += 1
            answers[1] += not same

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(opt.streams)]
    for thread in threads:
        thread.start()
    for number in range(opt.kills):
        # the server gives up a request that four leads in a row have given no token
        until = answers[0] + (opt.streams if opt.role == "lead" else 0)
        time.sleep(0.1)
        while answers[0] < until:
            time.sleep(0.01)
        kind, *ms = lose(server, number)
        times.setdefault(kind, []).append(ms)
    stop.set()
    for thread in threads:
        thread.join()
    after, last = footprint(server.lead()), server.workers()
    server.process.send_signal(signal.SIGTERM)
    status = server.process.wait()
    time.sleep(0.2)
    left = [pid for pid in last if os.path.exists(f"/proc/{pid}")]
    bad += answers[1] + bool(status) + len(left) + (after[0] > before[0]) + (after[1] > before[1] + 16)
    print(f"{opt.kills} losses, {answers[0]} answers, {answers[1]} of them lost or changed")
    for kind, both in sorted(times.items()):
        for what, ms in zip(("noticed", "made good"), (sorted(values) for values in zip(*both))):
            print(f"  {kind}: {what} after {ms[0]:.0f} to {ms[-1]:.0f} ms, median {ms[len(ms) // 2]:.0f}")
    print(f"  descriptors {before[0]} -> {after[0]}, memory {before[1]:.0f} -> {after[1]:.0f} MiB, exit {status}, left {left}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
