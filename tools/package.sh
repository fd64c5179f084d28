#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# package.sh BUILD: a folder that runs on a machine with only a driver, and its archive.
set -eu

out=$1
version=$("$out/cairn" version | sed 's/^cairn \([^,]*\),.*/\1/')
dir=$out/cairn-$version
rm -rf "$dir"
mkdir -p "$dir/serving" "$dir/conformance" "$dir/primitives" "$dir/fused" "$dir/lib"
cp "$out/cairn" "$dir/"
cp "$out"/*_plugin.so "$dir/"
cp -r serving/embedded serving/golden "$dir/serving/"
cp conformance/abi.h conformance/example_plugin.c conformance/README.md conformance/mustpass.txt \
	conformance/waivers.txt "$dir/conformance/"
cp primitives/*.h "$dir/primitives/"
cp fused/*.h "$dir/fused/"
cp LICENSE README.md "$dir/"
# Large and optional: without it gemm falls back to our own kernel. PACKAGE_CUBLASLT=1 takes it along.
if [ -n "${PACKAGE_CUBLASLT:-}" ]; then
	lib=$(ls /usr/local/cuda*/lib*/libcublasLt.so.1[0-9] 2>/dev/null | head -1)
	[ -n "$lib" ] && cp -L "$lib" "$dir/lib/"
fi
missing=$(ldd "$dir/cairn" | grep -vE 'linux-vdso|libc\.so|libm\.so|libdl|libpthread|librt|ld-linux' || true)
if [ -n "$missing" ]; then
	echo "package: the program needs libraries beyond the system's:" >&2
	echo "$missing" >&2
	exit 1
fi
tar -C "$out" -czf "$out/cairn-$version.tar.gz" "cairn-$version"
echo "$out/cairn-$version.tar.gz"
