#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD [STAGE]: runs the checks of `make check` after the build. The last line counts all cases.
set -u

out=$1
stage=${2:-}
status=0

if command -v python3 >/dev/null 2>&1; then
	for test in tools/*_test.py reports/*_test.py; do
		echo "$test"
		CAIRN_BUILD=$out python3 "$test" -q || status=1
	done
	python3 reports/readme_table.py --check || status=1
fi
# A mutant hunt uses one thread, so one family per processor runs at a time.
mutants() {
	"$out/cairn" list $stage | cut -d. -f1,2 | grep -E '^(primitives|fused)\.' | sort -u |
		xargs -r -P "$(nproc)" -n 1 "$out/cairn" check --mutants >"$out/mutants.log" || return 1
}
mutants || status=1
awk -v stage="$stage" '/^mutants: / { caught += $2; all += $4; next } { print }
	END { printf "mutants: %d of %d caught\n", caught, all; exit !all && !stage }' "$out/mutants.log" || status=1
check() { # NAME [OPTION|GLOB]...: runs cases, output to BUILD/check.NAME
	log=$out/check.$1
	shift
	"$out/cairn" check --mustpass conformance/mustpass.txt --waivers conformance/waivers.txt "$@" >"$log" 2>&1
}
if [ "$stage" ]; then
	check stage "$stage" || status=1
	cat "$out/check.stage"
	exit $status
fi
# First arithmetic, in two processes side by side; then the tests of processes, sockets and threads, alone.
half=$((($(nproc) + 1) / 2))
OMP_NUM_THREADS=$half check kernels primitives fused &
kernels=$!
OMP_NUM_THREADS=$half check engine --skip 'serving.http*' --skip 'serving.serve*' --skip 'serving.bench_serve*' serving ||
	status=1
wait $kernels || status=1
check rest conformance rdma 'serving.http*' 'serving.serve*' 'serving.bench_serve*' || status=1
for part in kernels engine rest; do
	cat "$out/check.$part"
done
awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { passed += $1; failed += $3; skipped += $5; parts++ }
	END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit parts != 3 }' \
	"$out/check.kernels" "$out/check.engine" "$out/check.rest" || status=1
exit $status
