#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# headers.sh DIR: copies the headers that cairn.h includes to DIR, in their folders; cairn.h itself has none.
set -eu

for header in $("${CC:-gcc}" -I. -MM -MT x serving/library/cairn.h | tr -d '\\' | tr ' ' '\n' | grep '\.h$'); do
	case $header in
	serving/library/cairn.h) install -D -m 644 "$header" "$1/cairn.h" ;;
	*) install -D -m 644 "$header" "$1/$header" ;;
	esac
done
