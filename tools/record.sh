#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# record.sh BUILD FILE [PART]: appends to FILE every row that this machine can measure: benches; on a GPU also whole
# steps of the engine, launches and bytes by hardware counters, and the server under load. PART limits it to one
# stage, or to bench, generate, traffic or serve. A recording has the rows of one card: reports/h200.jsonl is that of an
# H200, reports/h100.jsonl that of an H100. reports/README.md says how to make one.
set -u

out=$1
file=$2
part=${3:-}
status=0
gpu() { nvidia-smi -L >/dev/null 2>&1; }
if gpu && [ -s "$file" ]; then
	card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
	other=$(grep -v '"driver": *""' "$file" | grep -o '"gpu": *"[^"]*"' | grep -vF "\"$card\"" | head -n 1)
	[ -z "$other" ] || { echo "record: $file has rows of another card ($other), this one is the $card" >&2; exit 2; }
fi
case $part in
generate | traffic | serve) gpu || { echo "record: $part: no GPU found" >&2; exit 2; } ;;
*)
	stage=$part
	[ "$part" = bench ] && stage=
	"$out/cairn" bench --json "$file" $stage || { echo "record: some rows failed and are omitted"; status=1; }
	if [ "${stage:-fused}" = fused ] && gpu; then
		"$out/cairn" bench --json "$file" --impl ladder1 --impl ladder2 --impl ladder3 --impl ladder4 --impl ladder5 \
			fused.attn_dense fused.attn_paged || { echo "record: some rows of the ladder failed and are omitted"; status=1; }
	fi
	[ -z "$part" ] && gpu || exit $status
	;;
esac
# --repeat 2: the first run of a process also loads libraries and kernels, which distorts its time to first token.
generate() { # SHAPE PROMPT_TOKENS NEW_TOKENS [OPTION]...
	shape=$1 prompt=$2 new=$3
	shift 3
	"$out/cairn" generate --impl cuda --shape "$shape" --prompt-tokens "$prompt" --max-new-tokens "$new" --repeat 2 \
		--json "$file" "$@" >/dev/null || { echo "record: generate $shape, prompt of $prompt, $*: failed"; status=1; }
}
if [ -z "$part" ] || [ "$part" = generate ]; then
	for shape in llama32-1b llama3-8b llama2-7b qwen2-7b dsv2lite; do
		for decode in auto graph persistent unfused; do
			case $shape:$decode in dsv2lite:unfused) continue ;; esac	# has no such form
			generate $shape 1024 64 --decode $decode
		done
	done
	# time per token by length, figure 8 of the source
	for prompt in 4096 16384; do
		for decode in auto unfused; do
			generate llama2-7b $prompt 64 --decode $decode
		done
	done
	# share of decoding by prompt length, figure 2 of the source
	for prompt in 256 2048; do
		generate llama2-7b $prompt 256
	done
	# time to the first token of a long prompt
	generate llama3-8b 8000 64
	generate llama3-8b 1024 64 --batch 16
	# the same with attention by a simple kernel, and with our own in a step of the same form
	generate llama3-8b 1024 64 --batch 16 --impl cuda:ladder2
	generate llama3-8b 1024 64 --batch 16 --decode unfused
fi
# hardware counters, if ncu is installed
if [ -z "$part" ] || [ "$part" = traffic ]; then
	python3 reports/traffic.py "$out/cairn" >>"$file" || { echo "record: some cases have no counts"; status=1; }
fi
if [ -z "$part" ] || [ "$part" = serve ]; then
	python3 tools/serve_figures.py "$out" "$file" || { echo "record: serve: some parts failed"; status=1; }
fi
exit $status
