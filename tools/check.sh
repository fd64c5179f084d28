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
"$out/cairn" check --mutants $stage || status=1
"$out/cairn" check --mustpass conformance/mustpass.txt --waivers conformance/waivers.txt $stage || status=1
exit $status
