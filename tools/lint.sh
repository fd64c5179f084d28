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
# A comment that opens with its object ("Of a zeroed store: ...") or with "Whoever" is a riddle: the subject comes first.
git grep -nE '(/\*|//|^[[:space:]]*\*|^[[:space:]]*#)[[:space:]]*(Of|Who|Whoever|By whoever|Whose)[[:space:]]' -- \
	'*.c' '*.h' '*.cu' '*.cuh' '*.js' '*.py' '*.sh' '*Kbuild' Makefile && complain "comments that do not open with their subject"
# Lines have at most 110 columns, with tabs at every 8; the generated Unicode table is exempt. One awk reads all files: a
# process for each of a thousand files takes longer than everything else here.
existing() { git ls-files -z "$@" 2>/dev/null | xargs -0 -r ls -d 2>/dev/null; }
existing '*.c' '*.h' '*.cu' '*.cuh' '*.js' | grep -v '^serving/tokenizer/unicode_tables\.h$' | xargs -r -d '\n' awk '
	{
		n = split($0, part, "\t")
		columns = 0
		for (i = 1; i <= n; i++) {
			columns += length(part[i])
			if (i < n)
				columns += 8 - columns % 8
		}
	}
	columns > 110 { print "lint: " FILENAME ":" FNR ": " columns " columns, more than 110"; bad = 1 }
	END { exit bad }' >&2 || bad=1
unlicensed=$(existing '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*.js' '*.css' '*Kbuild' Makefile | xargs -r -d '\n' awk '
	FNR <= 3 && /SPDX-License-Identifier: Apache-2\.0/ { found[FILENAME] = 1 }
	FNR > 3 { nextfile }
	END { for (i = 1; i < ARGC; i++) if (!(ARGV[i] in found)) print ARGV[i] }')
for f in $unlicensed; do
	complain "$f: no SPDX line"
done
exit $bad
