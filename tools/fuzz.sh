#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh BUILD SECONDS FUZZER...: runs each BUILD/fuzz/FUZZER for SECONDS, starting from the kept corpus and from the
# inputs that earlier runs found (BUILD/fuzz/corpus). A finding ends the run; its input is kept as
# BUILD/fuzz/FUZZER-crash-*.
set -u

out=$1/fuzz
seconds=$2
shift 2
status=0
for name in "$@"; do
	mkdir -p "$out/corpus/$name"
	dict=serving/golden/fuzz/$name.dict
	log=$out/$name.log
	if "$out/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -verbosity=1 \
		-print_final_stats=1 -artifact_prefix="$out/$name-" ${dict:+$([ -f "$dict" ] && echo "-dict=$dict")} \
		"$out/corpus/$name" "serving/golden/fuzz/$name" >"$log" 2>&1; then
		echo "ok - fuzz $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s," \
			"$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1) edges"
	else
		tail -40 "$log"
		echo "not ok - fuzz $name: see $log"
		status=1
	fi
done
exit $status
