#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# setup.sh [plots | clients BUILD]: installs missing packages with the system's package manager, and names them.
set -eu

need=""
want() { # want PACKAGE TEST...: the package is missing if the test fails
	package=$1
	shift
	"$@" >/dev/null 2>&1 || need="$need $package"
}
header() { printf '#include <%s>\n' "$1" | "${CC:-gcc}" -E -x c - ; }
exists() { command -v "$1"; }

want gcc exists gcc
want make exists make
if command -v "${CC:-gcc}" >/dev/null 2>&1; then
	want libjansson-dev header jansson.h
	want libpcre2-dev eval "printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' | ${CC:-gcc} -E -x c -"
	want libutf8proc-dev header utf8proc.h
	want libmd-dev header sha2.h
else
	need="$need libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libmd-dev"
fi
want python3 exists python3

if [ -n "$need" ]; then
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "setup: missing:$need; install them with this system's package manager" >&2
		exit 1
	fi
	echo "setup: installing$need"
	as_root=""
	[ "$(id -u)" = 0 ] || as_root=sudo
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q $need ||
		{ $as_root apt-get update -q && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q $need; }
fi

# The C sources of llhttp, which are compiled into the program. LLHTTP= names another folder (see the Makefile).
if [ -z "${LLHTTP:-}" ] && [ ! -f /usr/share/llhttp/llhttp.c ]; then
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "setup: missing: the C sources of llhttp 8 (https://github.com/nodejs/llhttp); set LLHTTP to their folder" >&2
		exit 1
	fi
	echo "setup: installing node-llhttp (its C sources)"
	as_root=""
	[ "$(id -u)" = 0 ] || as_root=sudo
	# without recommended packages, which include node itself
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends node-llhttp ||
		{ $as_root apt-get update -q && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends node-llhttp; }
fi

# Optional: without these packages the tests against the vendor's RDMA library, those with the stock programs on top of
# it, those with the soft-RoCE of the system's kernel in an emulated machine, those of cairn search, which calls the
# solver cbc, those of the control channel, which calls libsodium, and those of KV events, which call libzmq, are
# reported as skipped.
try_install() { # try_install WHAT_FOR OPTION PACKAGES
	echo "setup: installing$3 ($1; optional)"
	as_root=""
	[ "$(id -u)" = 0 ] || as_root=sudo
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q $2 $3 ||
		{ $as_root apt-get update -q && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q $2 $3; } ||
		echo "setup: installation failed: the tests that need these packages are skipped"
}
if command -v apt-get >/dev/null 2>&1; then
	verbs=""
	ls /usr/include/infiniband/mlx5dv.h /usr/lib/*/libmlx5.so >/dev/null 2>&1 || verbs=" libibverbs-dev ibverbs-providers"
	exists ibv_rc_pingpong >/dev/null 2>&1 || verbs="$verbs ibverbs-utils"
	exists ib_write_bw >/dev/null 2>&1 || verbs="$verbs perftest"
	[ -z "$verbs" ] || try_install "tests of rdma" "" "$verbs"
	ls /usr/lib/*/libsodium.so.* /usr/lib/libsodium.so.* >/dev/null 2>&1 ||
		try_install "control channel of remote workers" "" " libsodium23"
	zmq=""
	ls /usr/lib/*/libzmq.so.5 /usr/lib/libzmq.so.5 >/dev/null 2>&1 || zmq=" libzmq5"
	[ -d /usr/lib/python3/dist-packages/zmq ] || zmq="$zmq python3-zmq"
	[ -d /usr/lib/python3/dist-packages/msgpack ] || zmq="$zmq python3-msgpack"
	[ -z "$zmq" ] || try_install "KV events and their tests" --no-install-recommends "$zmq"
	exists cbc >/dev/null 2>&1 || try_install "cairn search and its tests" --no-install-recommends " coinor-cbc"
	guest=""
	exists qemu-system-x86_64 >/dev/null 2>&1 || guest=" qemu-system-x86"
	exists busybox >/dev/null 2>&1 || guest="$guest busybox-static"
	[ -x /sbin/ip ] || [ -x /usr/sbin/ip ] || guest="$guest iproute2"
	# the recipe is for Debian's kernel packages
	if [ "$(uname -m)" = x86_64 ] && grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
		[ -z "$guest" ] || try_install "test rdma.rxe" --no-install-recommends "$guest"
		rdma/nic/rxe_guest.sh fetch || echo "setup: the test rdma.rxe will be skipped"
	fi
fi

# Optional: a browser for the test of the built-in page, and third-party clients, in a folder of their own
# (setup.sh clients BUILD).
if [ "${1:-}" = clients ]; then
	if command -v apt-get >/dev/null 2>&1 && ! exists chromium >/dev/null 2>&1; then
		try_install "test of the built-in page" --no-install-recommends " chromium"
	fi
	clients=${2:-build}/clients
	python3 -m venv "$clients" && "$clients/bin/pip" install -q openai servebench ||
		echo "setup: installation failed: the tests with third-party clients are skipped"
fi

# Optional: without matplotlib the report has tables instead of plots; without nvcc the CUDA part is not built.
has_plots() { python3 -c 'import matplotlib' 2>/dev/null || /usr/bin/python3 -c 'import matplotlib' 2>/dev/null; }
if [ "${1:-}" = plots ] && ! has_plots && command -v apt-get >/dev/null 2>&1; then
	echo "setup: installing python3-matplotlib (for plots; optional)"
	as_root=""
	[ "$(id -u)" = 0 ] || as_root=sudo
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q python3-matplotlib ||
		echo "setup: installation of python3-matplotlib failed: the report will have tables only"
fi
if ! ls /usr/local/cuda*/bin/nvcc >/dev/null 2>&1 && ! command -v nvcc >/dev/null 2>&1; then
	echo "setup: no nvcc under /usr/local/cuda: building without CUDA (install CUDA 12.4 or newer from NVIDIA for the GPU part)"
fi
