#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The container's %post in a fresh Debian 12: everything is installed and built in a chroot.
# usage: apptainer_post_test.sh SOURCE_DIR WORK_DIR. Ends with 77 where no chroot can be made.
set -euo pipefail
source=$1 root=$2/apptainer-root

skip() { printf 'skipped: %s\n' "$*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"
PATH=$PATH:/usr/sbin:/sbin
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
git -C "$source" rev-parse HEAD >/dev/null 2>&1 || skip "$source is not a git checkout"

trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
rm -rf --one-file-system "$root"
debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >"$2/debootstrap.log" ||
  skip "no Debian mirror could be reached"
mkdir -p "$root/opt/poros"
git -C "$source" archive HEAD | tar -x -C "$root/opt/poros"
cp /etc/resolv.conf "$root/etc/"
for settings in /etc/pip.conf /etc/apt/apt.conf.d/*proxy*; do
  [ ! -e "$settings" ] || cp "$settings" "$root$settings"
done
mount -t proc proc "$root/proc"
chroot "$root" /opt/poros/slurm/apptainer/post.sh /opt/poros
chroot "$root" /opt/poros/build/bin/poros --version
