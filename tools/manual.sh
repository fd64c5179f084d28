#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# manual.sh PROGRAM DIR: writes the manual pages cairn.1, cairn-serve.1 and so on to DIR, from the output of --help.
set -eu

program=$(readlink -f "$1")
dir=$2
version=$("$program" version | sed 's/^cairn \([^,]*\),.*/\1/')
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$dir"
page() { # page NAME COMMAND SUMMARY
	# help2man runs a program of the page's name. It expects "Usage:" and "or:".
	printf '#!/bin/sh\n"%s" %s | sed "s/^usage:/Usage:/; s/^       cairn /  or:  cairn /"\n' "$program" "$2" >"$tmp/$1"
	chmod +x "$tmp/$1"
	help2man --no-info --version-string="$version" --source="cairn $version" --name="$3" -o "$dir/$1.1" "$tmp/$1"
	# a manual that does not change is built without a date that does
	sed -i -e '/^\.\\" DO NOT MODIFY/d' -e "s/^\(\.TH [^ ]* \"1\"\) \"[^\"]*\"/\1 \"\"/" "$dir/$1.1"
}
"$program" --help=commands | while IFS="$(printf '\t')" read -r command summary; do
	# version has no options
	# shellcheck disable=SC2086
	if "$program" $command --help >/dev/null 2>&1 </dev/null; then
		page "cairn-$(echo "$command" | tr ' ' -)" "$command --help" "$summary"
	fi
done
page cairn help "LLM inference kernels for NVIDIA Hopper: the suite, the engine and the server"
