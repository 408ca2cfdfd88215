#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Form: layout of the C++ files, shell scripts, and which layer includes which.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(git ls-files -co --exclude-standard -- '*.hpp' '*.cpp' '*.cu' '*.cuh')
clang-format --dry-run --Werror "${sources[@]}"
mapfile -t shells < <(git ls-files -co --exclude-standard -- 'scripts/*.sh' '.ci/run' 'slurm/lab/*.sh' 'slurm/apptainer/*.sh' 'slurm/*.sbatch')
shellcheck "${shells[@]}"
python3 tests/layers_test.py
echo "check: ${#sources[@]} C++ files, ${#shells[@]} shell scripts: in order"
