#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a bare machine to a report: installs what is needed, builds, and runs the demo campaign on the
# CPU: the project's own trainer (resident and streamed) and PEFT fine-tune a small real model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/bootstrap.sh --peers
started=$SECONDS
code=0
build/bin/poros bench run configs/bench/demo_cpu.yaml --output-dir "${1:-bench_output/demo}" || code=$?
echo "campaign: $((SECONDS - started)) s"
exit $code
