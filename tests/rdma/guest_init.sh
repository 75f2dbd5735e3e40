#!/bin/sh
# Goes on from guest_boot.sh among the host's files: devices, network, the command, the end.
# Variables from the kernel's command line: rank, peer, siw, shares, memlock.
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr

share=0
while [ $share -lt $shares ]; do
  folder=$(cat /run/guest/share$share)
  mkdir -p "$folder"
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap share$share "$folder"
  share=$((share + 1))
done

me=$((rank + 1)) other=$((1 - rank))
echo guest$rank >/proc/sys/kernel/hostname
printf '%s\n' '127.0.0.1 localhost' '10.79.0.1 guest0' '10.79.0.2 guest1' >/etc/hosts
ip link set lo up
for net in 0 1; do
  ip address add 10.79.$net.$me/24 dev eth$net
  ip link set eth$net up
done
rdma link add rxe0 type rxe netdev eth0
[ -z "$siw" ] || rdma link add siw0 type siw netdev eth1
until grep -qs ffff:0a4f:000$me /sys/class/infiniband/rxe0/ports/1/gids/*; do sleep 0.1; done

listens() { ss -Hltn | grep -q . || rdma resource show cm_id | grep -q LISTEN; }
touch /run/guest/up$rank
if [ "$peer" ]; then
  until [ -e /run/guest/up$other ]; do sleep 0.1; done
  if [ $rank = 0 ]; then
    until [ -e /run/guest/ready ]; do sleep 0.1; done
  else
    (for tenth in $(seq 100); do ! listens || break; sleep 0.1; done; touch /run/guest/ready) &
  fi
fi

# A port of the host's can be opened once only; a pipe can be opened again as /dev/stdout. All that the command starts ends with
# it, as processes of its own namespace, so that the pipes do.
mkfifo -m 666 /run/out /run/err
cat /run/out >$(echo /dev/vport*p1) & out=$!
cat /run/err >$(echo /dev/vport*p2) & err=$!
ulimit -l $memlock
status=0
unshare --pid --fork --mount-proc sh /run/guest/command$rank </dev/null >/run/out 2>/run/err || status=$?
wait $out $err
echo $status >/run/guest/status$rank
sync
echo b >/proc/sysrq-trigger
