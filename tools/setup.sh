#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# setup.sh [packages | downloads | plots | clients BUILD | grammar [BUILD]]: installs missing packages with the system's
# package manager, and names them. `packages` leaves out what is downloaded for tests alone, and `downloads` adds it: it is
# not needed for compiling, so `make check` does both at the same time.
set -eu

what=${1:-all}
case $what in
all | packages | downloads | grammar) grammar=y ;;
*) grammar="" ;;
esac

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

# Optional packages. The tests that need a missing one are reported as skipped:
#   libibverbs-dev, ibverbs-providers		the vendor's RDMA library
#   ibverbs-utils, perftest			stock programs that use this library
#   qemu, busybox, iproute2			soft-RoCE of a Linux kernel in an emulated machine (test rdma.rxe)
#   libsodium, libzmq, coinor-cbc		control channel of remote workers; KV events; cairn search
#   help2man, abigail-tools, pkg-config		make install and the installed library
#   python3-pip, json-schema-test-suite		structured outputs
try_install() { # try_install WHAT_FOR OPTION PACKAGES
	echo "setup: installing$3 ($1; optional)"
	as_root=""
	[ "$(id -u)" = 0 ] || as_root=sudo
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q $2 $3 ||
		{ $as_root apt-get update -q && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q $2 $3; } ||
		echo "setup: installation failed: the tests that need these packages are skipped"
}
install_all() { # install_all PACKAGES
	echo "setup: installing$1 (for tests; optional)"
	as_root=""
	[ "$(id -u)" = 0 ] || as_root=sudo
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends $1 ||
		{ $as_root apt-get update -q &&
			DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends $1; }
}
# One call installs them all, because each call of apt-get reads the package lists anew; if it fails, they are tried one
# group at a time, so that a package that this system lacks takes no other test with it.
if command -v apt-get >/dev/null 2>&1; then
	verbs=""
	ls /usr/include/infiniband/mlx5dv.h /usr/lib/*/libmlx5.so >/dev/null 2>&1 || verbs=" libibverbs-dev ibverbs-providers"
	exists ibv_rc_pingpong >/dev/null 2>&1 || verbs="$verbs ibverbs-utils"
	exists ib_write_bw >/dev/null 2>&1 || verbs="$verbs perftest"
	sodium=""
	[ -n "$(ls /usr/lib/*/libsodium.so.* /usr/lib/libsodium.so.* 2>/dev/null)" ] || sodium=" libsodium23"
	zmq=""
	[ -n "$(ls /usr/lib/*/libzmq.so.5 /usr/lib/libzmq.so.5 2>/dev/null)" ] || zmq=" libzmq5"
	[ -d /usr/lib/python3/dist-packages/zmq ] || zmq="$zmq python3-zmq"
	[ -d /usr/lib/python3/dist-packages/msgpack ] || zmq="$zmq python3-msgpack"
	cbc=""
	exists cbc >/dev/null 2>&1 || cbc=" coinor-cbc"
	manual=""
	exists help2man >/dev/null 2>&1 || manual=" help2man"
	exists abidiff >/dev/null 2>&1 || manual="$manual abigail-tools"
	exists pkg-config >/dev/null 2>&1 || manual="$manual pkg-config"
	guest=""
	# the recipe is for Debian's kernel packages
	if [ "$(uname -m)" = x86_64 ] && grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
		exists qemu-system-x86_64 >/dev/null 2>&1 || guest=" qemu-system-x86"
		exists busybox >/dev/null 2>&1 || guest="$guest busybox-static"
		[ -x /sbin/ip ] || [ -x /usr/sbin/ip ] || guest="$guest iproute2"
	fi
	wheel_tools=""
	schemas=""
	if [ -n "$grammar" ]; then
		grep -qs "llguidance@1\.9\.1" "${2:-build}/lib/libllguidance.so" || python3 -m pip --version >/dev/null 2>&1 ||
			wheel_tools=" python3-pip"
		[ -d /usr/share/json-schema-test-suite ] || schemas=" json-schema-test-suite python3-jsonschema"
	fi
	all="$verbs$sodium$zmq$cbc$manual$guest$wheel_tools$schemas"
	if [ -n "$all" ] && ! install_all "$all"; then
		[ -z "$verbs" ] || try_install "tests of rdma" --no-install-recommends "$verbs"
		[ -z "$sodium" ] || try_install "control channel of remote workers" --no-install-recommends "$sodium"
		[ -z "$zmq" ] || try_install "KV events and their tests" --no-install-recommends "$zmq"
		[ -z "$cbc" ] || try_install "cairn search and its tests" --no-install-recommends "$cbc"
		[ -z "$manual" ] || try_install "make install and its tests" --no-install-recommends "$manual"
		[ -z "$guest" ] || try_install "test rdma.rxe" --no-install-recommends "$guest"
		[ -z "$wheel_tools" ] || try_install "structured outputs" --no-install-recommends "$wheel_tools"
		[ -z "$schemas" ] || try_install "tests of structured outputs" --no-install-recommends "$schemas"
	fi
	if [ $what != packages ] && [ "$(uname -m)" = x86_64 ] && grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
		rdma/nic/rxe_guest.sh fetch || echo "setup: the test rdma.rxe will be skipped"
	fi
fi

# Optional: llguidance, which compiles the constraints of structured outputs, for BUILD/lib. It comes from a wheel of PyPI, pinned
# by version and hash; only the C interface of the wheel's module is used. The second library defines the Python symbols that the
# module refers to, so that it loads without Python (serving/grammar/llguidance.h).
if [ -n "$grammar" ] && [ $what != packages ]; then
	lib=${2:-build}/lib
	wheel="llguidance==1.9.1 --hash=sha256:dfac6021d9c4c5ef16b3a1d336c05ca5e8208ff30dec29d1c63ebcafbee3a346"
	fetch_grammar() {
		dir=$(mktemp -d)
		echo "$wheel" >"$dir/want"
		python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes -r "$dir/want" -d "$dir" &&
			python3 -m zipfile -e "$dir"/*.whl "$dir" && mkdir -p "$lib" &&
			nm -D --undefined-only "$dir/llguidance/_lib.abi3.so" |
			sed -n 's/.* \(_*Py[A-Za-z0-9_]*\).*/char \1[64];/p' >"$dir/names.c" &&
			"${CC:-gcc}" -shared -fPIC -o "$lib/libllguidance_python.so" "$dir/names.c" &&
			cp "$dir"/llguidance-*.dist-info/licenses/LICENSE "$lib/libllguidance.LICENSE" &&
			cp "$dir/llguidance/_lib.abi3.so" "$lib/libllguidance.so"
		ok=$?
		rm -rf "$dir"
		return $ok
	}
	if ! grep -qs "llguidance@1\.9\.1" "$lib/libllguidance.so"; then
		echo "setup: installing llguidance in $lib (structured outputs; optional)"
		fetch_grammar || echo "setup: installation failed: structured outputs are refused, and their tests skipped"
	fi
fi

# Optional: a browser for the test of the built-in page, and third-party clients (and NumPy, with which the library
# exchanges tensors), in a folder of their own (setup.sh clients BUILD).
if [ $what = clients ]; then
	if command -v apt-get >/dev/null 2>&1 && ! exists chromium >/dev/null 2>&1; then
		try_install "test of the built-in page" --no-install-recommends " chromium"
	fi
	clients=${2:-build}/clients
	python3 -m venv "$clients" && "$clients/bin/pip" install -q openai servebench langchain-openai litellm openai-agents "numpy>=2.1" ||
		echo "setup: installation failed: the tests with third-party clients are skipped"
fi

# Optional: without matplotlib the report has tables instead of plots; without nvcc the CUDA part is not built.
has_plots() { python3 -c 'import matplotlib' 2>/dev/null || /usr/bin/python3 -c 'import matplotlib' 2>/dev/null; }
if [ $what = plots ] && ! has_plots && command -v apt-get >/dev/null 2>&1; then
	echo "setup: installing python3-matplotlib (for plots; optional)"
	as_root=""
	[ "$(id -u)" = 0 ] || as_root=sudo
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q python3-matplotlib ||
		echo "setup: installation of python3-matplotlib failed: the report will have tables only"
fi
if ! ls /usr/local/cuda*/bin/nvcc >/dev/null 2>&1 && ! command -v nvcc >/dev/null 2>&1; then
	echo "setup: no nvcc under /usr/local/cuda: building without CUDA (install CUDA 12.4 or newer from NVIDIA for the GPU part)"
fi
