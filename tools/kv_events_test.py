#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `cairn serve --kv-events` with libraries that routers use: CAIRN_BUILD=build python3 tools/kv_events_test.py

pyzmq and msgpack are Debian's python3-zmq and python3-msgpack; without them, or without libzmq, the test is skipped.
"""

import ctypes.util
import json
import os
import re
import sys
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_under_test import Server, why_no_server  # noqa: E402

try:
    import msgpack
    import zmq
except ImportError:
    # Debian's modules belong to the system's Python.
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import msgpack
        import zmq
    except ImportError:
        msgpack = zmq = None

NO_SERVER = why_no_server()
PATIENCE_MS = 60000
PAGE = 16


def post(server, path, body):
    request = urllib.request.Request(
        server.url + path, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


class Index:
    """What a router knows: the blocks of one replica, kept from its events."""

    def __init__(self):
        self.blocks = {}  # hash: (parent, tokens)
        self.events = []

    def take(self, payload):
        time, events, rank = msgpack.unpackb(payload, strict_map_key=True)
        assert rank == 0 and time > 1e9
        for event in events:
            kind = event["type"]
            self.events.append(event)
            if kind == "BlockStored":
                size, parent = event["block_size"], event["parent_block_hash"]
                assert len(event["token_ids"]) == size * len(event["block_hashes"])
                assert parent is None or parent in self.blocks
                for i, name in enumerate(event["block_hashes"]):
                    assert name not in self.blocks
                    self.blocks[name] = (parent, tuple(event["token_ids"][i * size : (i + 1) * size]))
                    parent = name
            elif kind == "BlockRemoved":
                for name in event["block_hashes"]:
                    del self.blocks[name]
            else:
                assert kind == "AllBlocksCleared"
                self.blocks.clear()

    def prefix(self, tokens):
        """How many of these tokens a chain of blocks from the start has."""
        parent, found = None, 0
        by_content = {content: name for name, content in self.blocks.items()}
        while (name := by_content.get((parent, tuple(tokens[found : found + PAGE])))) is not None:
            parent, found = name, found + PAGE
        return found


@unittest.skipIf(NO_SERVER, NO_SERVER)
@unittest.skipIf(zmq is None, "no python3-zmq and python3-msgpack")
@unittest.skipIf(not ctypes.util.find_library("zmq"), "no libzmq5")
class Events(unittest.TestCase):
    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, linger=0)

    def socket(self, kind, address):
        socket = self.context.socket(kind)
        self.addCleanup(socket.close)
        socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        socket.connect(address)
        return socket

    def replayed(self, address, start=0):
        """Asks as vLLM's subscribers do, with a REQ-shaped message. [(number, payload)]"""
        socket = self.socket(zmq.DEALER, address)
        socket.send_multipart((b"", start.to_bytes(8, "big")))
        found = []
        while True:
            empty, number, payload = socket.recv_multipart()
            self.assertEqual(empty, b"")
            if number == (-1).to_bytes(8, "big", signed=True):
                self.assertEqual(payload, b"")
                socket.close()
                return found
            found.append((int.from_bytes(number, "big"), payload))

    def test_a_router_knows_the_cache(self):
        with Server(
            "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-events-topic", "kv@a@m",
            "--pages", "24", "--page-size", str(PAGE), "--batch", "2", "--max-context", "256", "--quiet",
        ) as server:  # fmt: skip
            address, replay = re.search(r"KV events at (\S+), replays at (\S+)", server.output()).groups()
            live = self.socket(zmq.SUB, address)
            live.setsockopt(zmq.SUBSCRIBE, b"kv@")
            prompts = [[7 + i] * 20 + list(range(40, 60)) for i in range(12)]
            for prompt in prompts:
                post(server, "/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0})
            secret = [3] * 64
            post(server, "/v1/completions", {"prompt": secret, "max_tokens": 2, "cache_salt": "tenant"})
            # the last events of a request come with the next step, those of a later request after them
            post(server, "/v1/completions", {"prompt": [5] * 33, "max_tokens": 2, "temperature": 0})
            index, numbers = Index(), []
            while not any(5 in event.get("token_ids", ()) for event in index.events):
                index, numbers = Index(), []
                for number, payload in self.replayed(replay):
                    numbers.append(number)
                    index.take(payload)
            self.assertEqual(numbers, list(range(len(numbers))))
            self.assertEqual(index.events[0], {"type": "AllBlocksCleared"})
            self.assertTrue(any(e["type"] == "BlockRemoved" for e in index.events), "24 pages do not hold all prompts")
            self.assertFalse(any(3 in e.get("token_ids", ()) for e in index.events), "a salted prompt was published")
            self.assertEqual(index.prefix([5] * 33), 32)
            # a request that the index expects to find its prefix finds it
            answer = post(server, "/v1/completions", {"prompt": [5] * 33, "max_tokens": 1, "temperature": 0})
            self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 32)
            stored = next(e for e in index.events if e["type"] == "BlockStored")
            self.assertEqual(
                (stored["block_size"], stored["lora_id"], stored["medium"], stored["group_idx"]), (PAGE, None, "GPU", 0)
            )
            # the live stream has the bytes of the replay
            kept = dict(self.replayed(replay))
            topic, number, payload = live.recv_multipart()
            self.assertEqual(topic, b"kv@a@m")
            self.assertEqual(payload, kept[int.from_bytes(number, "big")])
            metrics = server.get("/metrics")[1]
            self.assertRegex(metrics, r"cairn:kv_events_published_total\{[^}]*\} [1-9]")
            self.assertRegex(metrics, r"cairn:kv_events_lost_total\{[^}]*\} 0\n")
            self.assertRegex(
                metrics,
                r'vllm:cache_config_info\{block_size="16",cache_dtype="auto",enable_prefix_caching="True",'
                r'num_gpu_blocks="24",model_name="embedded",engine="0"\} 1\n',
            )

    def test_off_by_default(self):
        with Server("--quiet") as server:
            self.assertNotIn("KV events", server.output())
            metrics = server.get("/metrics")[1]
            self.assertNotIn("kv_events", metrics)
            self.assertIn("vllm:cache_config_info{", metrics)

    def test_bad_options(self):
        for options, text in (
            (("--kv-events", "5557"), "--kv-events: is not tcp://HOST:PORT"),
            (("--kv-events-topic", "a"), "--kv-events-topic: needs --kv-events"),
            (("--kv-events", "tcp://127.0.0.1:*", "--prefix-cache", "token"), "--kv-events: needs --prefix-cache page"),
            (("--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "x"), "--kv-events-replay: is not"),
        ):
            with self.assertRaises(RuntimeError) as caught, Server(*options):
                pass
            self.assertIn(text, str(caught.exception))
            self.assertIn("status 2", str(caught.exception))

    def test_a_port_in_use(self):
        taken = self.context.socket(zmq.PUB)
        self.addCleanup(taken.close)
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        with self.assertRaises(RuntimeError) as caught, Server("--kv-events", f"tcp://127.0.0.1:{port}"):
            pass
        self.assertIn(f"--kv-events: tcp://127.0.0.1:{port}: Address already in use", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
