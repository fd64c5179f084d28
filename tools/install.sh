#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: what `make install` does after the build. $DESTDIR goes before all paths. Of the program's data only the
# embedded model and what `cairn validate` reads are installed: host tests, which read golden files, need the source tree or the
# archive of `make package`.
set -eu

out=$1
PREFIX=${PREFIX:-/usr/local}
LIBDIR=${LIBDIR:-$PREFIX/lib}
bin=${DESTDIR:-}$PREFIX/bin
lib=${DESTDIR:-}$LIBDIR
include=${DESTDIR:-}$PREFIX/include/cairn
share=${DESTDIR:-}$PREFIX/share
so=$(basename "$(ls "$out"/libcairn.so.* 2>/dev/null)")
if [ -z "$so" ]; then
	echo "install: $out/libcairn.so: not built; a build with sanitizers (SAN=) cannot be installed" >&2
	exit 1
fi
if ! command -v help2man >/dev/null 2>&1; then
	echo "install: help2man: not found; it makes the manual: apt-get install help2man" >&2
	exit 1
fi
install -D -m 755 -t "$bin" "$out/cairn"
install -D -m 644 -t "$lib" "$out/$so" "$out/libcairn.a"
# llguidance, for structured outputs, if tools/setup.sh has fetched it (serving/grammar/llguidance.c looks for it there)
if [ -f "$out/lib/libllguidance.LICENSE" ]; then
	install -D -m 644 -t "${DESTDIR:-}$PREFIX/lib/cairn" "$out/lib/libllguidance.so" "$out/lib/libllguidance_python.so"
	install -D -m 644 "$out/lib/libllguidance.LICENSE" "$share/doc/cairn/llguidance.LICENSE"
fi
ln -sf "$so" "$lib/libcairn.so"
mkdir -p "$lib/pkgconfig"
sed -e "s|@PREFIX@|$PREFIX|" -e "s|@LIBDIR@|$LIBDIR|" "$out/cairn.pc" >"$lib/pkgconfig/cairn.pc"

rm -rf "$include"
tools/headers.sh "$include"
install -D -m 644 -t "$share/cairn/serving/embedded" serving/embedded/*
install -D -m 644 -t "$share/cairn/conformance" conformance/mustpass.txt
install -D -m 644 -t "$share/cairn/conformance/validate/ranges" conformance/validate/ranges/*.json
install -D -m 644 -t "$share/doc/cairn" README.md LICENSE
install -D -m 644 -t "$share/doc/cairn/examples" serving/examples/*.c serving/examples/*.py
install -D -m 644 -t "$share/bash-completion/completions" tools/completion/cairn
install -D -m 644 -t "$share/zsh/site-functions" tools/completion/_cairn
# The manual is made once for a program; cairn.1 is its last page.
if [ ! -e "$out/man/cairn.1" ] || [ -n "$(find "$out/cairn" tools/manual.sh -newer "$out/man/cairn.1")" ]; then
	rm -rf "$out/man"
	tools/manual.sh "$out/cairn" "$out/man"
fi
install -D -m 644 -t "$share/man/man1" "$out"/man/*.1
