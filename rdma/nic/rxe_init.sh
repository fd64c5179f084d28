#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rxe_init.sh - first program of the soft-RoCE guest (rxe_guest.sh), under busybox. Its report goes to the second
# serial line; the first is the kernel's. A section is the text between '@@ NAME' and '@@ end NAME STATUS'.
PATH=/bin

section() { # section NAME COMMAND...: runs COMMAND for at most 60 s
	name=$1
	shift
	echo "@@ $name"
	timeout -s KILL 60 "$@"
	echo "@@ end $name $?"
}
# busybox's shell would run its own applet 'ip'
ip() { /bin/ip "$@"; }

load() {
	for module in $(cat /modules/order); do
		insmod "/modules/$module.ko" || return 1
	done
}

# Creates two devices on the two ends of a veth pair. rxe's UDP socket is in the initial network namespace, so both
# ends must be there too; routing rules send each packet over the pair, which would otherwise stay within the host.
connect() {
	ip link set lo up
	ip link add v0 type veth peer name v1
	echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
	for i in v0 v1; do
		echo 1 >/proc/sys/net/ipv4/conf/$i/accept_local
		echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter
	done
	ip -batch - <<END || return 1
link set v0 mtu 4200
link set v1 mtu 4200
addr add 10.0.0.1/32 dev v0
addr add 10.0.0.2/32 dev v1
link set v0 up
link set v1 up
neigh add 10.0.0.2 lladdr $(cat /sys/class/net/v1/address) dev v0
neigh add 10.0.0.1 lladdr $(cat /sys/class/net/v0/address) dev v1
route add 10.0.0.2/32 dev v0 src 10.0.0.1 table 101
route add 10.0.0.1/32 dev v1 src 10.0.0.2 table 102
rule add pref 5 iif v0 lookup local
rule add pref 6 iif v1 lookup local
rule add pref 7 from 10.0.0.1 to 10.0.0.2 lookup 101
rule add pref 8 from 10.0.0.2 to 10.0.0.1 lookup 102
rule add pref 9 lookup local
rule del pref 0
END
	rdma link add rxe0 type rxe netdev v0 && rdma link add rxe1 type rxe netdev v1
}

two() { # two SERVER_ARGS CLIENT_ARGS PROGRAM ARG...: one process on each device; their control connection uses lo
	server=$1 client=$2
	shift 2
	"$@" $server >/tmp/server 2>&1 &
	pid=$!
	# wait until port 18515 (hexadecimal 4853) is listening
	i=0
	while ! grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 2>/dev/null && [ $i -lt 100 ]; do
		i=$((i + 1))
		sleep 0.05
	done
	"$@" $client 127.0.0.1 || return 1
	wait $pid || { cat /tmp/server; return 1; }
}

counters() { # prints both ends' packets: sent, received, dropped
	for i in v0 v1; do
		cd /sys/class/net/$i/statistics || return
		echo "$i $(cat tx_packets) $(cat rx_packets) $(cat tx_dropped)"
	done
}

# timeout cannot run a function, but it can run a second shell with this file
case ${1:-} in
load | connect | counters) "$1"; exit ;;
two) shift; two "$@"; exit ;;
esac

mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
stty -F /dev/ttyS1 raw
exec >/dev/ttyS1 2>&1
ulimit -l unlimited
uname -r
section load sh /init load
section connect sh /init connect
section links rdma link show
section semantics nic_semantics 200
section counters sh /init counters
[ -x /bin/transport_end ] && section transport transport_end verbs all device=rxe0 quick=1 big=1048576
[ -x /bin/ibv_rc_pingpong ] && {
	section pingpong sh /init two "-d rxe1" "-d rxe0" ibv_rc_pingpong -g 1 -n 200 -c -s 4096
	section pingpong_events sh /init two "-d rxe1" "-d rxe0" ibv_rc_pingpong -g 1 -n 100 -c -e
}
[ -x /bin/ib_write_bw ] && section write_bw sh /init two "-d rxe1" "-d rxe0" ib_write_bw -x 1 -F -n 200 -s 65536
[ -x /bin/ib_write_lat ] && section write_lat sh /init two "-d rxe1" "-d rxe0" ib_write_lat -x 1 -F -n 200 -s 64
echo "@@ done"
sleep 0.1
poweroff -f
