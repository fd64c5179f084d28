#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# report.sh BUILD [STAGE]: benchmarks what hardware there is and writes reports/out/index.html.
set -u

out=$1
stage=${2:-}
tools/setup.sh plots
mkdir -p reports/out
rm -f "$out/bench.jsonl"
"$out/cairn" bench --json "$out/bench.jsonl" $stage || echo "report: some rows failed; they are left out"
if nvidia-smi -L >/dev/null 2>&1 && [ -z "$stage" ]; then
	for shape in llama32-1b llama3-8b llama2-7b dsv2lite; do
		for decode in auto graph persistent unfused; do
			case $shape:$decode in dsv2lite:unfused) continue ;; esac	# has none
			"$out/cairn" generate --impl cuda --shape $shape --prompt-tokens 1024 --max-new-tokens 64 \
				--decode $decode --json "$out/bench.jsonl" >/dev/null ||
				echo "report: generate $shape, decode $decode, failed"
		done
	done
	# counters, where ncu is
	python3 tools/traffic.py "$out/cairn" >>"$out/bench.jsonl" || echo "report: not everything was counted"
fi
# the system's packages belong to the system's Python, which need not be the first in the path
python=python3
"$python" -c 'import matplotlib' 2>/dev/null || { /usr/bin/python3 -c 'import matplotlib' 2>/dev/null && python=/usr/bin/python3; }
"$python" tools/report.py --measured "$out/bench.jsonl" --recorded reports/h200.jsonl --out reports/out
