#!/bin/busybox sh
# The first process of a guest: runs what /run-these says, a package a line,
# and ends the machine with a verdict. Modules come when the kernel asks for
# them, as on any machine.
/bin/busybox mkdir -p /sbin /proc /sys /dev /tmp /run /root /etc
/bin/busybox --install -s /bin
/bin/busybox ln -s /bin/busybox /sbin/modprobe
export PATH=/usr/bin:/bin HOME=/root HEADGATE_REQUIRE_ROOT=1 HEADGATE_SLOWNESS=5 HEADGATE_TEST_PROGRAM=/src/cmd/agent/run

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs run /run
ln -s /proc/self/fd /dev/fd
mkdir /dev/net && mknod /dev/net/tun c 10 200
echo root:x:0:0::/root:/bin/sh >/etc/passwd
ip link set lo up
ulimit -n 1048576

failed=0
while read -r dir args; do
	echo "=== $dir $args"
	cd "/src/$dir" && eval "./run $args" </dev/null || failed=1
done </run-these

# 7: the kernel has died in part. 9: it has warned. See tainted-kernels.rst.
tainted=$(cat /proc/sys/kernel/tainted)
if [ $((tainted >> 7 & 5)) -ne 0 ]; then
	echo "the kernel complains:"
	dmesg | grep -A 40 -E 'BUG:|WARNING:|Oops'
	failed=1
fi
echo "headgate-verdict: $failed"
poweroff -f
