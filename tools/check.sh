#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD [STAGE]: runs the checks of `make check` after the build. The last line counts all cases.
# Kept in BUILD: check.log (TAP), check.xml (JUnit), check.seconds (seconds of each family, the slowest first), mutants.log,
# ladder.log. The seconds of each part are printed as it ends.
set -u

out=$1
stage=${2:-}
status=0
begun=$(date +%s)
rm -f "$out/ladder.log"
took() { # took PART
	now=$(date +%s)
	echo "# $1: $((now - begun)) s"
	begun=$now
}
# Threads that wait for work must not spin: other test processes need the processors.
export OMP_WAIT_POLICY=passive

scripts() {
	bad=0
	for test in tools/*_test.py conformance/validate/*_test.py conformance/validate/faults/*_test.py reports/tests/*_test.py; do
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
mutants() {
	$gently "$out/cairn" check --mutants=conformance/catchers.txt $stage >"$out/mutants.log" 2>&1
}
# The steps of the ladder are tables with one or two operations; a build without CUDA has none of them. Cases for which the first
# step needs seconds are left out; cairn bench verifies its rows itself.
ladder() { # FAMILY STEP...
	family=$1
	shift
	$gently "$out/cairn" check --mustpass conformance/ladder.txt --skip 'attn_dense.h*' --skip 'attn_dense.large_*' \
		--skip 'attn_paged.decode_*' $(printf ' --impl ladder%d' "$@") "$family"
}
ladders() {
	[ "${stage:-fused}" = fused ] && [ -e "$out/conformance/tables/impl_ladder.o" ] || return 0
	bad=0
	ladder fused.attn_dense 1 2 3 4 5 >"$out/ladder.log" 2>&1 || bad=1
	ladder fused.attn_paged 1 2 3 4 >>"$out/ladder.log" 2>&1 || bad=1
	return $bad
}
# The tests leave processors idle when they wait and near their end, so the mutants and the ladder run at the same time. With
# fewer than 8 processors, mutants and ladder run at low priority, so that they do not delay tests that measure time. If such a
# machine also has no GPU, fewer tests run: one kind of input for each case, without the cases of conformance/few.txt.
gently=
fewer=
if [ "$(nproc)" -lt 8 ]; then
	gently="nice -n 19"
	if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
		fewer="--one-kind $(sed -n 's/^\([^# ][^ ]*\).*/--skip \1/p' conformance/few.txt | tr '\n' ' ')"
		echo "# no GPU, $(nproc) processors: one kind of input a case, without the cases of conformance/few.txt"
	fi
fi
set -f	# the skipped names are globs of the suite's
mutants &
mutants=$!
ladders &
ladders=$!
"$out/cairn" check --mustpass conformance/mustpass.txt --waivers conformance/waivers.txt --list-slowest --junit "$out/check.xml" \
	$fewer $stage >"$out/check.log" 2>&1 || status=1
sed -nE 's/^(not )?ok [0-9]+ - ([^ ]+) # .* skipped, ([0-9.]+) s.*/\3 \2/p' "$out/check.log" | sort -rn >"$out/check.seconds"
if [ -n "${scripts:-}" ]; then
	wait "$scripts" || status=1
	cat "$out/scripts.log"
fi
took check
wait "$mutants" || status=1
wait "$ladders" || status=1
took "mutants and ladders, behind it"
cat "$out/mutants.log"
[ ! -e "$out/ladder.log" ] || cat "$out/ladder.log"
cat "$out/check.log"
exit $status
