#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD [STAGE]: runs the checks of `make check` after the build. The last line counts all cases.
# Kept in BUILD: check.log (TAP), check.xml (JUnit), check.seconds (seconds of each family, the slowest first), mutants.log.
set -u

out=$1
stage=${2:-}
status=0
# Threads that wait for work must not spin: other test processes need the processors.
export OMP_WAIT_POLICY=passive

scripts() {
	bad=0
	for test in tools/*_test.py reports/*_test.py; do
		echo "$test"
		CAIRN_BUILD=$out python3 "$test" -q || bad=1
	done
	python3 reports/readme_table.py --check || bad=1
	return $bad
}
if [ -z "$stage" ] && command -v python3 >/dev/null 2>&1; then
	scripts >"$out/scripts.log" 2>&1 &
	scripts=$!
fi
"$out/cairn" check --mutants=conformance/catchers.txt $stage >"$out/mutants.log" 2>&1 || status=1
cat "$out/mutants.log"
"$out/cairn" check --mustpass conformance/mustpass.txt --waivers conformance/waivers.txt --list-slowest --junit "$out/check.xml" \
	$stage >"$out/check.log" 2>&1 || status=1
sed -nE 's/^(not )?ok [0-9]+ - ([^ ]+) # .* skipped, ([0-9.]+) s.*/\3 \2/p' "$out/check.log" | sort -rn >"$out/check.seconds"
if [ -n "${scripts:-}" ]; then
	wait "$scripts" || status=1
	cat "$out/scripts.log"
fi
cat "$out/check.log"
exit $status
