#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What an image needs, put into a fresh Debian 12: the %post of poros.def.
#
#   slurm/apptainer/post.sh CHECKOUT     as root, in the image or in a chroot; makes CHECKOUT/build
set -euo pipefail

checkout=$(realpath -- "${1:?usage: post.sh CHECKOUT}")
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

# A build of the host's would be of other libraries.
rm -rf "$checkout/build" "$checkout/.deps"

apt-get update -qq
# PMIx lets srun start ranks inside the container (srun --mpi=pmix apptainer exec ...).
apt-get install -y -qq --no-install-recommends openmpi-bin libopenmpi-dev libpmix2 numactl >/dev/null
"$checkout/scripts/bootstrap.sh" ${POROS_IMAGE_PEERS:+--peers}

"$checkout/build/bin/poros" --version
apt-get clean
rm -rf /var/lib/apt/lists/* /root/.cache
