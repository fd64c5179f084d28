#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lint.sh: rules of the tree that a compiler does not know.
set -u

bad=0
complain() {
	echo "lint: $1" >&2
	bad=1
}
# Layering: primitives sees nothing above it; fused and rdma see primitives; serving sees the table only.
grep -nE '#include "(\.\./)?(fused|serving|conformance|rdma)/' primitives/* 2>/dev/null |
	grep -vE '_test\.c:|^[^:]*:[0-9]+:#include "\.\./conformance/(harness|spawn)\.h"' && complain "primitives/ includes what lies above it"
grep -nE '#include "(\.\./)?(serving|conformance|rdma)/' fused/* 2>/dev/null |
	grep -vE '_test\.c:' && complain "fused/ includes what lies above it"
grep -nE '#include "(\.\./)?(primitives|fused|conformance)/' serving/* 2>/dev/null |
	grep -vE '_test\.[ch]:|conformance/(abi|registry)\.h|primitives/(error|dtype)\.h' && complain "serving/ includes more than the table"
grep -nE '#include "(\.\./)?(fused|serving|conformance)/' rdma/* 2>/dev/null |
	grep -vE '_test\.c:' && complain "rdma/ includes more than primitives/"
grep -lE '#include .*cuda' serving/*.[ch] 2>/dev/null && complain "serving/ names CUDA"
# Tests reach kernels through the table alone.
grep -lE '<<<' ./*/*_test.c 2>/dev/null && complain "a test launches a kernel itself"
# The assembler sees every wrapper, used or not.
for f in $(grep -ohE '^(template <int n> )?PTX [^(]*ptx_[a-z0-9_A-Z]+\(' primitives/ptx.cuh primitives/ptx_copy.cuh | grep -oE 'ptx_\w+'); do
	grep -qw "$f" primitives/ptx_all.cu || complain "primitives/ptx_all.cu: $f is missing"
done
# Lines of 110 columns at most, tabs to every eighth; tables that a program wrote may be wider.
for f in $(git ls-files '*.c' '*.h' '*.cu' '*.cuh' 2>/dev/null | grep -v '^serving/unicode_tables\.h$'); do
	[ -f "$f" ] && expand "$f" | awk -v f="$f" 'length($0) > 110 { print f ":" FNR ": " length($0) " columns"; n = 1 } END { exit !n }' &&
		complain "$f: lines beyond 110 columns"
done
for f in $(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*Kbuild' Makefile 2>/dev/null); do
	[ -f "$f" ] && ! head -3 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' && complain "$f: no SPDX line"
done
exit $bad
