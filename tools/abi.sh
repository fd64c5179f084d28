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
# Identifiers of types are hashes, and functions of other libraries are left out, so that a change of the interface changes few lines.
abidw --headers-dir "$include" --drop-private-types --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed \
	--no-parameter-names --type-id-style hash --out-file "$include/abi.xml" "$1"/libcairn.so.*
awk '
	/<function-decl/ { text = ""; inside = 1 }
	inside {
		text = text $0 "\n"
		if (/<\/function-decl>|\/>$/ && !(/<parameter|<return/)) {
			inside = 0
			if (text ~ /elf-symbol-id/)
				printf "%s", text
		}
		next
	}
	{ print }' "$include/abi.xml" | awk '
	/<abi-instr/ { head = $0; next }
	/<\/abi-instr>/ && head { head = ""; next }
	head { print head; head = "" }
	{ print }' >"$2"
