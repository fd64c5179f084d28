#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dropin.sh BUILD FILE.jsonl [OPTION]...: runs FlashInfer's own tests of attention over our kernels and appends a row for
# each file of tests (tools/dropin_grid.py has the options). Needs a GPU, PyTorch, pytest, and what FlashInfer's Python code
# imports; that code and its tests are fetched into BUILD/dropin. TESTS= names a copy of FlashInfer's folder `tests`.
set -eu

[ $# -ge 2 ] || { sed -n 's/^# //p' "$0" | sed 1d >&2; exit 2; }
out=$1
file=$2
shift 2
version=0.6.17
tests=${TESTS:-$out/dropin/flashinfer/tests}
python3 tools/dropin.py "$out/dropin.so" "$out/dropin/folder"
python3 -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("flashinfer"))' ||
	python3 -m pip install --quiet --no-deps --upgrade --target "$out/dropin/site" flashinfer-python==$version "apache-tvm-ffi<0.2"
[ -d "$tests" ] || git clone --quiet --depth 1 --branch v$version https://github.com/flashinfer-ai/flashinfer "$out/dropin/flashinfer"
PYTHONPATH=$out/dropin/site${PYTHONPATH:+:$PYTHONPATH} python3 tools/dropin_grid.py "$out/dropin/folder" "$tests" --json "$file" "$@"
