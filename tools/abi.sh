#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi.sh BUILD FILE: writes what programs know of the built library, its symbols and the types of its headers, to FILE.
# serving/library/abi.xml is the recorded one, which tools/library_test.py compares with. Tables and argument structs may grow at
# their end. Whatever else changes after a release needs a new library_version (serving/library/Kbuild) and a new record:
# tools/abi.sh build serving/library/abi.xml
set -eu

include=$(mktemp -d)
trap 'rm -rf "$include"' EXIT
tools/headers.sh "$include"
abidw --headers-dir "$include" --drop-private-types --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed \
	--no-parameter-names --out-file "$2" "$1"/libcairn.so.*
