#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# report.sh BUILD [STAGE]: runs the benches that this machine's hardware allows and writes reports/out/index.html.
set -u

out=$1
stage=${2:-}
[ -n "${NOSETUP:-}" ] || tools/setup.sh plots
mkdir -p reports/out
rm -f "$out/bench.jsonl"
tools/record.sh "$out" "$out/bench.jsonl" $stage
# matplotlib from the system's packages belongs to the system's Python, which need not be the first one in PATH
python=python3
"$python" -c 'import matplotlib' 2>/dev/null || { /usr/bin/python3 -c 'import matplotlib' 2>/dev/null && python=/usr/bin/python3; }
"$python" reports/report.py --measured "$out/bench.jsonl" --out reports/out
