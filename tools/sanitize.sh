#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh BUILD [STAGE]: every family's small cases under each tool of compute-sanitizer.
set -u

out=$1
stage=${2:-}
status=0
tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
if [ -z "$tool" ]; then
	echo "check-sanitize: compute-sanitizer not found (it comes with CUDA)" >&2
	exit 2
fi
for t in memcheck racecheck synccheck initcheck; do
	echo "== $t"
	"$tool" --tool $t --target-processes all --error-exitcode 9 --print-limit 5 \
		"$out/cairn" check --sanitize --impl cuda ${stage:-primitives fused} || status=1
done
exit $status
