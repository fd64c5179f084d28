#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rxe_guest.sh - boots the system's own Linux kernel in an emulated machine with two soft-RoCE devices: a second
# implementation of reliable connections, and unmodified programs on a kernel's RDMA stack. Needs no hardware, KVM or root.
#
#   rxe_guest.sh fetch         downloads the kernel package and keeps the files the guest needs; needs apt
#   rxe_guest.sh run BUILD     boots it with BUILD/nic_semantics and prints the guest's report (rxe_init.sh)
#
# CAIRN_RXE_CACHE: folder of the kernel (build/rxe of this tree). CAIRN_RXE_TIMEOUT: the guest's time-out in s (150).
# Exit status: 0 the guest ran to its end; 77 a requirement is missing, named; 1 the guest failed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${CAIRN_RXE_CACHE:-$here/../../build/rxe}

absent() {
	echo "rxe_guest: $1"
	exit 77
}

fetch() {
	[ "$(uname -m)" = x86_64 ] || absent "kernels are fetched for x86_64 only, this is $(uname -m)"
	[ -s "$cache/vmlinux" ] && return
	command -v apt-get >/dev/null 2>&1 || absent "apt-get not found: cannot download a kernel"
	# not the cloud flavour, which has no rdma_rxe
	package=$(apt-cache depends linux-image-amd64 2>/dev/null |
		sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
	[ -n "$package" ] || absent "package linux-image-amd64 is unknown (apt-get update may help)"
	mkdir -p "$cache"
	# a separate folder, because apt may write to it without privileges
	part=$(mktemp -d "$cache/part.XXXXXX")
	trap 'rm -rf "$part"' EXIT
	chmod 755 "$part"
	(cd "$part" && timeout 300 apt-get download "$package") >"$part/log" 2>&1 ||
		absent "$package: $(tail -1 "$part/log")"
	python3 "$here/rxe_image.py" kernel "$part"/linux-image-*.deb "$cache"
}

run() {
	build=$1
	[ -s "$cache/vmlinux" ] || absent "no kernel in $cache; run rdma/nic/rxe_guest.sh fetch"
	[ -x "$build/nic_semantics" ] || absent "$build/nic_semantics was not built (needs libibverbs-dev)"
	for program in qemu-system-x86_64 busybox ip rdma ldd python3; do
		command -v $program >/dev/null 2>&1 || [ -x /usr/sbin/$program ] || [ -x /sbin/$program ] ||
			absent "$program: program not found"
	done
	programs="ip rdma $build/nic_semantics"
	[ -x "$build/transport_end" ] && programs="$programs $build/transport_end"
	for program in ibv_rc_pingpong ib_write_bw ib_write_lat; do
		command -v $program >/dev/null 2>&1 && programs="$programs $program"
	done
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	# shellcheck disable=SC2086
	python3 "$here/rxe_image.py" initramfs "$cache" "$work/initramfs" "$here/rxe_init.sh" $programs
	status=0
	timeout -k 5 "${CAIRN_RXE_TIMEOUT:-150}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -M q35 -m 512 -smp 1 \
		-nodefaults -no-reboot -display none -kernel "$cache/vmlinux" -initrd "$work/initramfs" \
		-serial "file:$work/console" -serial "file:$work/report" -append "console=ttyS0 quiet loglevel=4 panic=-1 \
		mitigations=off nokaslr random.trust_cpu=on i8042.nopnp=1 cryptomgr.notests apparmor=0 audit=0" \
		</dev/null >"$work/qemu" 2>&1 || status=$?
	cat "$work/report"
	if [ $status != 0 ] || ! grep -q '^@@ done$' "$work/report"; then
		echo "rxe_guest: the guest ended with status $status; its console:"
		tail -20 "$work/console" "$work/qemu"
		exit 1
	fi
}

case ${1:-} in
fetch) fetch ;;
run) run "${2:?rxe_guest: run BUILD}" ;;
*) sed -n '3,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
