#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must hold before a change lands: installs, builds with warnings as errors, runs the
# tests. `scripts/test.sh --slow` runs the long ones (fuzzing, chaos) instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
prefix=${POROS_PREFIX:-$PWD/.deps}
which_tests=ci
if [ "${1:-}" = --slow ]; then which_tests=slow; fi

scripts/bootstrap.sh --peers --slurm --preset ci --prefix "$prefix"

export POROS_PYTHON=$prefix/python/bin/python POROS_PEERS_PYTHON=$prefix/peers/bin/python
scripts/check.sh
ctest --preset $which_tests -j 2
if [ $which_tests = ci ]; then
  "$POROS_PEERS_PYTHON" -m pytest -q -p no:cacheprovider tests/python
fi
