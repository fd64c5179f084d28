#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# peers.sh [cudnn | flashinfer]...: fetches from PyPI the libraries that the tables of peers call, into build/peers
# (PEERS= names another folder). A program started in this folder loads them from there. Without an argument: all.
#   cudnn       500 MB; not needed where PyTorch is installed, whose cuDNN the program finds
#   flashinfer  20 MB; its modules are then compiled by nvcc, which takes minutes, most of them for FlashAttention-3
# CUDA_MAJOR=12 takes the packages for CUDA 12.
set -eu

peers=${PEERS:-build/peers}
fetch() { # fetch PACKAGE...
	python3 -m pip --version >/dev/null 2>&1 || { echo "peers: python3 has no pip (Debian: python3-pip)" >&2; exit 1; }
	python3 -m pip install --quiet --no-deps --upgrade --target "$peers" "$@"
}

[ $# -gt 0 ] || set -- cudnn flashinfer
mkdir -p "$peers"
for name; do
	case $name in
	cudnn)
		fetch "nvidia-cudnn-cu${CUDA_MAJOR:-13}>=9.16"
		echo "peers: $peers/nvidia/cudnn/lib/libcudnn.so.9"
		;;
	flashinfer)
		fetch flashinfer-python==0.6.17 "apache-tvm-ffi<0.2"
		python3 tools/peers_flashinfer.py "$peers"
		;;
	*)
		echo "usage: peers.sh [cudnn | flashinfer]..." >&2
		exit 2
		;;
	esac
done
