#!/bin/sh
# The guest's first program, from its initial files: loads modules and lays memory over the host's files. A failure is a panic,
# which ends the guest.
set -e
while read module; do insmod "/modules/$module"; done </modules/order
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
mount -t tmpfs memory /memory
mkdir /memory/files /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/files,workdir=/memory/work overlay /merged
mount -t tmpfs -o mode=755 run /merged/run
mkdir /merged/run/guest
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none control /merged/run/guest
exec switch_root /merged /bin/sh /run/guest/init
