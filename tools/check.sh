#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD [STAGE]: what `make check` runs after the build. Its last line counts all cases.
set -u

out=$1
stage=${2:-}
status=0

if command -v python3 >/dev/null 2>&1; then
	for test in tools/*_test.py; do
		echo "$test"
		CAIRN_BUILD=$out python3 "$test" -q || status=1
	done
	python3 tools/readme_table.py --check || status=1
fi
# A hunt is one thread: as many families at a time as there are processors.
mutants() {
	"$out/cairn" list $stage | cut -d. -f1,2 | grep -E '^(primitives|fused)\.' | sort -u |
		xargs -r -P "$(nproc)" -n 1 "$out/cairn" check --mutants >"$out/mutants.log" || return 1
}
mutants || status=1
awk -v stage="$stage" '/^mutants: / { caught += $2; all += $4; next } { print }
	END { printf "mutants: %d of %d caught\n", caught, all; exit !all && !stage }' "$out/mutants.log" || status=1
"$out/cairn" check --mustpass conformance/mustpass.txt --waivers conformance/waivers.txt $stage || status=1
exit $status
