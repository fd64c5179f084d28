#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh BUILD DEBUG_BUILD [STAGE]: runs a selection of every operation's cases under each tool of
# compute-sanitizer.
#
# Each operation and tool gets a process of its own, several at a time, with logs in BUILD/sanitize. A process passes
# if all its cases passed, the tool found nothing in it or its children, and its last line counts the cases: a process
# that dies early is recognised by the missing count. The last line of the script counts the processes:
# `N passed, N failed, N skipped`.
#
# racecheck does not model the following, and reports every read that relies on it as a race:
# - cp.async.mbarrier.arrive.noinc completes copies to shared memory before the phase of the mbarrier completes
#   (fused/grid*.cu*, moe*, cluster_mla* and attn_bsr* rely on this);
# - a lane that arrives after __syncwarp() arrives for its whole warp (gemm*_tile.cu and attn_forward.cuh rely on this
#   too);
# - bar.arrive orders memory accesses.
# Under racecheck, a warp also leaves a cluster barrier only after all warps of its CTA have arrived at it, so
# gemm_tile.cu would wait for ever. A DEBUG build of these kernels waits for its copies, arrives with all lanes,
# synchronises instead of arriving, waits for its cluster at the start, and is otherwise the same. racecheck therefore
# checks DEBUG_BUILD: `make DEBUG=60`, where a wait may last two minutes before it counts as a hang. Kernels whose CTAs
# wait for each other are slowest under racecheck, so cluster_mla gets fewer cases. cuBLASLt's kernels (nvjet*) have a
# race in split-K that we cannot fix: races with all accesses in nvjet* do not count.
#
# memcheck reports st.async within a cluster of one CTA as invalid. Among our operations only dsmem uses it so, in its
# rows of size 1, which measure exactly this; memcheck skips these rows.
#
# synccheck runs out of memory for the launches of attn_bwd with sms 1, one for each of its tiles; it skips that case.
#
# --num-cuda-barriers: the tools' default table of mbarriers is too small for 132 CTAs with a hundred each. On overflow
# synccheck reports cudaErrorIllegalAddress in correct kernels.
set -u

one() {	# TOOL FAMILY
	exe=$out/cairn cases=24 skip=none
	case $1:$2 in
	racecheck:fused.attn_paged | racecheck:fused.attn_dense | racecheck:fused.attn_bwd | racecheck:fused.attn_fp8) exe=$debug/cairn ;;
	racecheck:fused.attn_bsr | racecheck:fused.attn_variant | racecheck:fused.cluster_attn | racecheck:fused.mla_*) exe=$debug/cairn ;;
	racecheck:fused.decode_step* | racecheck:fused.moe*) exe=$debug/cairn ;;
	racecheck:primitives.gemm*) exe=$debug/cairn ;;
	racecheck:fused.cluster_mla) cases=8 exe=$debug/cairn ;;
	synccheck:fused.attn_bwd) skip='fused.attn_bwd.sms_1.*' ;;
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
	*"SUMMARY: $theirs hazard"*)	# all hazards found are among those printed
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
	echo "check-sanitize: no GPU found" >&2
	exit 2
fi
mkdir -p "$out/sanitize"
# The operations that must pass on a device are checked, slowest tool first.
families=$(grep -v '^#' conformance/mustpass.txt | cut -d. -f1,2 | sort -u | grep "^${stage}")
cores=$(nproc --all)
jobs=$((cores < 8 ? 1 : cores / 3 < 6 ? cores / 3 : 6))
export OMP_NUM_THREADS=$((cores / jobs))
asked=0
# Kernels that are not operations of the table. Those of the transports take longer under a tool than the time limit.
# initcheck is not used: it does not see what a network card writes.
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
