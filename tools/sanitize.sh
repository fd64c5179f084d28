#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh BUILD DEBUG_BUILD [STAGE]: a selection of every operation under each tool of compute-sanitizer.
#
# A process for each operation and tool, several at a time; logs in BUILD/sanitize. One is good if all its cases
# passed, the tool found nothing in any process, and the count of cases came to its end: who dies early says so by
# its absence. The last line counts the processes: `N passed, N failed, N skipped`.
#
# racecheck does not see that cp.async.mbarrier.arrive.noinc completes copies to shared memory before the phase of the
# mbarrier does, and calls every read of what it has let in a race. fused/grid*.cu*, moe*, cluster_mla* and
# attn_paged_prefill.cu rest on that; nor does it see that a lane which arrives after __syncwarp() speaks for its
# warp, nor what bar.arrive orders; gemm*_tile.cu have such lanes, too. A DEBUG build of them waits for its copies,
# arrives with all lanes and synchronises instead of arriving, everything else being the same, so there racecheck
# judges DEBUG_BUILD: `make DEBUG=60`, in which a wait may last two minutes before it counts as a hang. It slows
# kernels that wait for each other down most: cluster_mla gets fewer cases. What it finds in cuBLASLt's own kernels
# (nvjet*: a race in split-K) is not ours to mend: races all of whose accesses are there do not count.
#
# memcheck holds st.async within a cluster of one CTA for invalid. None of our operations does that, but for dsmem,
# whose rows of size 1 measure just this: memcheck does not get them.
#
# --num-cuda-barriers: the tools' table of mbarriers is too small for 132 CTAs with a hundred each. When it overflows
# synccheck reports cudaErrorIllegalAddress in kernels that are well.
set -u

one() {	# TOOL FAMILY
	exe=$out/cairn cases=24 skip=none
	case $1:$2 in
	racecheck:fused.attn_paged | racecheck:fused.cluster_attn) exe=$debug/cairn ;;
	racecheck:fused.decode_step | racecheck:fused.moe*) exe=$debug/cairn ;;
	racecheck:primitives.gemm*) exe=$debug/cairn ;;
	racecheck:fused.cluster_mla) cases=8 exe=$debug/cairn ;;
	memcheck:primitives.dsmem) skip='primitives.dsmem.*_size1_*' ;;
	esac
	log=$out/sanitize/$1.$2
	start=$(date +%s)
	timeout -k 5 "${CAIRN_SANITIZE_TIMEOUT:-300}" "$sanitizer" --tool "$1" --num-cuda-barriers 65536 \
		--target-processes all --error-exitcode 9 --print-limit 20 \
		"$exe" check --sanitize=$cases --impl cuda --skip "$skip" "$2" >"$log" 2>&1
	status=$?
	count=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
	summary=$(grep 'SUMMARY:' "$log" | grep -vE 'SUMMARY: 0 (errors|hazards)' | head -1)
	theirs=$(grep -c 'Race reported between .* at nvjet' "$log")
	case $summary in
	*"SUMMARY: $theirs hazard"*)	# and all that was found was shown
		[ "$theirs" -gt 0 ] && ! grep -q '=     and .* at [^n]' "$log" && status=0 summary=
		;;
	esac
	what="$1 $2: ${count:-ended early}, status $status, $(($(date +%s) - start)) s"
	case $status:$count:$summary in
	0:[1-9]*' passed, 0 failed'*:) echo "ok - $what" ;;
	*)
		printf '%s\n%s\n' "not ok - $what${summary:+,$summary}; see $log" \
			"$(grep -E '=====|not ok|    #' "$log" | head -12)"
		;;
	esac
}

if [ "$1" = --one ]; then
	one "$2" "$3"
	exit
fi
export out="$1" debug="$2"
stage=${3:-}
export sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)"
if [ -z "$sanitizer" ]; then
	echo "check-sanitize: compute-sanitizer not found (it comes with CUDA)" >&2
	exit 2
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
	echo "check-sanitize: no GPU here" >&2
	exit 2
fi
mkdir -p "$out/sanitize"
# What a device must have is what is looked at; what takes longest comes first. decode_step_forms has no kernel of
# its own, and whole layers.
families=$(grep -v '^#' conformance/mustpass.txt | cut -d. -f1,2 | sort -u | grep "^${stage}" |
	grep -v decode_step_forms)
cores=$(nproc --all)
jobs=$((cores < 8 ? 1 : cores / 3 < 6 ? cores / 3 : 6))
export OMP_NUM_THREADS=$((cores / jobs))
asked=0
# Kernels that are no operation of the table; those of the transports take longer under a tool than is allowed here.
# Not initcheck: what a card writes it does not see.
others=
case $stage in
'' | rdma) others='rdma.wqe_all rdma.fhbn_bytes rdma.fhbn_gpu' ;;
esac
for tool in racecheck initcheck memcheck synccheck; do
	[ $tool = initcheck ] && others_now= || others_now=$others
	for family in $families $others_now; do
		asked=$((asked + 1))
		echo "$tool $family"
	done
	echo "$asked" >"$out/sanitize/asked"
done | xargs -P "$jobs" -n 2 "$0" --one | tee "$out/sanitize/results"
asked=$(cat "$out/sanitize/asked")
passed=$(grep -c '^ok - ' "$out/sanitize/results")
echo "$passed passed, $((asked - passed)) failed, 0 skipped"
[ "$asked" -gt 0 ] && [ "$passed" -eq "$asked" ]
