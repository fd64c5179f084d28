#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A short form of the trials: python3 conformance/validate/faults/validate_trials_test.py"""

import contextlib
import io
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import validate_trials  # noqa: E402

BUILD = os.environ.get("CAIRN_BUILD", "build")


@unittest.skipUnless(os.path.exists(os.path.join(BUILD, "sim_plugin.so")), "the simulated device is not built")
class Trials(unittest.TestCase):
    def run_on(self, *args):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = validate_trials.main([*args, "--build", BUILD, "sim"])
        return status, out.getvalue()

    def test_every_class(self):
        """One trial of each defect finds and names it, and two sound devices are not accused."""
        status, text = self.run_on("--seeds", "1", "--healthy", "2")
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("\n"), 1 + len(validate_trials.SIM), text)

    def test_missed_defect(self):
        """A defect that does not show, or a run that does not end as it should, is counted."""
        sound = validate_trials.Class("missed", "", "screen.int")
        broken = validate_trials.Class("broken", "nomem=1", "copy")
        known, validate_trials.SIM = validate_trials.SIM, [sound, broken]
        try:
            status, text = self.run_on("--seeds", "1")
        finally:
            validate_trials.SIM = known
        self.assertEqual(status, 1)
        self.assertIn("missed                   1      0      0        0", text)
        self.assertIn("broken, trial 1: exit status 3: ", text)


if __name__ == "__main__":
    unittest.main()
