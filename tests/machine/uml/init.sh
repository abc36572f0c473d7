#!/bin/sh
# The first process of a User-Mode Linux machine. Its root is the host's, read-only, so only what is mounted here
# can be written to. It runs one program, leaves its exit status in the shared folder, and turns the machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir -p /run/share /run/tmp /run/lock /dev/shm
mount -t tmpfs shm /dev/shm
mount -t hostfs share /run/share -o "$HOST_FOLDER"
export TMPDIR=/run/tmp HOME=/run/tmp
sh /run/share/program >/run/share/output 2>&1 </dev/null
echo $? >/run/share/status
echo o >/proc/sysrq-trigger
sleep 60
