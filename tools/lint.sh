#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lint.sh: checks rules of the source tree that no compiler checks.
set -u

bad=0
complain() {
	echo "lint: $1" >&2
	bad=1
}
# Folders: layering, cycles, sizes.
python3 tools/folders.py || bad=1
# Serving calls operations through the operation table only.
git grep -lE '#include .*cuda' -- 'serving/*.c' 'serving/*.h' && complain "serving/ includes CUDA headers"
# Tests call kernels only through the operation table.
git grep -lE '<<<' -- '*_test.c' && complain "a test launches a kernel directly"
# Every PTX wrapper is assembled, used or not.
for f in $(grep -ohE '^(template <int n> )?PTX [^(]*ptx_[a-z0-9_A-Z]+\(' primitives/ptx/ptx.cuh primitives/ptx/ptx_copy.cuh | grep -oE 'ptx_\w+'); do
	grep -qw "$f" primitives/ptx/ptx_all.cu || complain "primitives/ptx/ptx_all.cu: $f is missing"
done
# The suite reads the driver's counters and changes nothing: no function of NVML that sets, resets or clears is loaded.
git grep -nE '"nvml[A-Za-z_0-9]*(Set|Reset|Clear|Freeze|Modify|Create|Destroy|Register|Remove|Discover|Activate)' -- '*.c' '*.h' &&
	complain "a function of NVML that changes something"
# Lines have at most 110 columns, with tabs at every 8; the generated Unicode table is exempt.
for f in $(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.js' 2>/dev/null | grep -v '^serving/tokenizer/unicode_tables\.h$'); do
	[ -f "$f" ] && expand "$f" | awk -v f="$f" 'length($0) > 110 { print f ":" FNR ": " length($0) " columns"; n = 1 } END { exit !n }' &&
		complain "$f: lines of more than 110 columns"
done
for f in $(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*.js' '*.css' '*Kbuild' Makefile 2>/dev/null); do
	[ -f "$f" ] && ! head -3 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' && complain "$f: no SPDX line"
done
exit $bad
