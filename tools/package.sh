#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# package.sh BUILD [WHERE]: makes in WHERE (default: BUILD) a folder that runs on a machine with only a driver, and
# the folder's archive. PACKAGE_LEVEL: gzip's level (6); 1 is several times as fast.
set -eu

out=$1
where=${2:-$out}
version=$("$out/cairn" version | sed 's/^cairn \([^,]*\),.*/\1/')
dir=$where/cairn-$version
rm -rf "$dir"
mkdir -p "$dir/serving" "$dir/conformance/plugins" "$dir/conformance/validate/ranges" "$dir/rdma/nic" "$dir/lib"
# The program, the libraries and the programs that its tests start: what `make all` builds and can be executed.
while read -r name; do
	[ ! -x "$out/$name" ] || cp "$out/$name" "$dir/"
done <"$out/programs"
cp -r serving/embedded serving/golden "$dir/serving/"
cp conformance/README.md conformance/mustpass.txt conformance/waivers.txt "$dir/conformance/"
# The headers, for plug-ins: what conformance/abi.h includes, from the root.
find primitives fused conformance -name '*.h' ! -name '*_test.h' -exec cp --parents {} "$dir/" \;
cp conformance/plugins/example_plugin.c "$dir/conformance/plugins/"
cp conformance/validate/ranges/*.json "$dir/conformance/validate/ranges/"
cp rdma/README.md "$dir/rdma/"
cp rdma/nic/*.txt rdma/nic/rxe_*.sh rdma/nic/rxe_*.py "$dir/rdma/nic/"
cp LICENSE README.md "$dir/"
[ ! -f "$out/lib/libllguidance.so" ] || cp "$out"/lib/libllguidance* "$dir/lib/"
# cuBLASLt is large and optional: without it gemm falls back to our own kernel. PACKAGE_CUBLASLT=1 includes it.
if [ -n "${PACKAGE_CUBLASLT:-}" ]; then
	lib=$(ls /usr/local/cuda*/lib*/libcublasLt.so.1[0-9] 2>/dev/null | head -1)
	[ -n "$lib" ] && cp -L "$lib" "$dir/lib/"
fi
missing=$(ldd "$dir/cairn" | grep -vE 'linux-vdso|libc\.so|libm\.so|libdl|libpthread|librt|ld-linux' || true)
if [ -n "$missing" ]; then
	echo "package: the program needs libraries that are not part of the system:" >&2
	echo "$missing" >&2
	exit 1
fi
tar -C "$where" -I "gzip -${PACKAGE_LEVEL:-6}" -cf "$where/cairn-$version.tar.gz" "cairn-$version"
echo "$where/cairn-$version.tar.gz"
