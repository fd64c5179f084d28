#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers under a schema are judged by what others wrote: the JSON-schema test suite and python3-jsonschema.

    CAIRN_BUILD=build python3 tools/structured_test.py
    CAIRN_BUILD=build STRUCTURED_REQUESTS=10000 python3 tools/structured_test.py    all schemas, minutes

The schemas are those of the suite's drafts 6 and 7, each with other seeds in turn. A schema is either refused with 400
that names it, or every answer that ends by "stop" validates. Without STRUCTURED_REQUESTS a sample is asked for.
"""

import collections
import concurrent.futures
import glob
import json
import os
import random
import sys
import unittest
import urllib.error
import urllib.request

from server_under_test import BUILD, Server, why_no_server

SUITE = "/usr/share/json-schema-test-suite/tests"
SAMPLE = 40
REQUESTS = int(os.environ.get("STRUCTURED_REQUESTS", SAMPLE))

try:
    import jsonschema
except ImportError:
    # a Python of one's own beside that of the system, which has the package
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import jsonschema
    except ImportError:
        jsonschema = None


def schemas():
    """[(name, schema, validator)], an object or a boolean each; those that need the network are left out."""
    found = []
    for draft, judge in (("draft6", jsonschema.Draft6Validator), ("draft7", jsonschema.Draft7Validator)):
        for path in sorted(glob.glob(f"{SUITE}/{draft}/*.json")):
            with open(path, encoding="utf-8") as f:
                for group in json.load(f):
                    if "localhost" not in json.dumps(group["schema"]):
                        name = f"{draft}/{os.path.basename(path)}: {group['description']}"
                        found.append((name, group["schema"], judge))
    return found


def ask(url, body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


@unittest.skipIf(why_no_server(), why_no_server())
@unittest.skipIf(jsonschema is None, "there is no python3-jsonschema")
@unittest.skipIf(not os.path.isdir(SUITE), "there is no json-schema-test-suite")
@unittest.skipIf(not os.path.exists(os.path.join(BUILD, "lib", "libllguidance.so")), "there is no llguidance")
class Structured(unittest.TestCase):
    def one(self, url, index, schema, judge):
        """(outcome, what is wrong or None)"""
        value = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        status, answer = ask(url, {"prompt": "The cat", "max_tokens": 120, "temperature": 1, "seed": index,
                                   "response_format": value})
        if status == 400:
            error = answer["error"]
            named = error["param"].startswith("response_format") and error["message"]
            return "refused", None if named else f"an unnamed error: {error}"
        if status != 200:
            return "failed", f"status {status}: {answer}"
        choice = answer["choices"][0]
        if choice["finish_reason"] != "stop":
            return choice["finish_reason"], None
        try:
            wrong = next(judge(schema).iter_errors(json.loads(choice["text"])), None)
        except json.JSONDecodeError as e:
            wrong = e
        except jsonschema.RefResolutionError:
            return "not judged", None
        return "stop", wrong and f"{choice['text']!r}: {wrong}"

    def test_answers_validate(self):
        every = schemas()
        random.Random(1).shuffle(every)
        counts, wrong = collections.Counter(), []
        with Server("--batch", "8", "--quiet") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = {}
            for i in range(REQUESTS):
                name, schema, judge = every[i % len(every)]
                jobs[pool.submit(self.one, server.url, i, schema, judge)] = name
            for job in concurrent.futures.as_completed(jobs):
                outcome, why = job.result()
                counts[outcome] += 1
                if why:
                    wrong.append(f"{jobs[job]}: {why}")
            self.assertEqual(server.get("/ready")[0], 200)
        if REQUESTS != SAMPLE:
            print(json.dumps({"requests": REQUESTS, "schemas": len(every), **counts, "wrong": len(wrong)}))
        self.assertEqual(wrong[:20], [])
        self.assertGreater(counts["stop"], REQUESTS // 10)
        self.assertEqual(counts["failed"], 0)


if __name__ == "__main__":
    unittest.main()
