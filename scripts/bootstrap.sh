#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Poros Bench needs and builds it into build/bin. Safe to run again: what is there is kept.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/bootstrap.sh [--peers[=all]] [--slurm] [--no-build] [--preset NAME] [--prefix DIR]

  --peers        also install the reference libraries (transformers, peft, bitsandbytes, accelerate)
  --peers=all    with unsloth too, whose cells run on a GPU only
  --slurm        also install Slurm, for the tests of batch jobs (slurm/lab)
  --no-build     install only
  --preset NAME  CMake preset to build: release (default), dev, asan, ci
  --prefix DIR   where LibTorch and the Python environments go (default: .deps in the checkout)

What the machine already has is used: system packages that are found, a CUDA toolkit on PATH or in
/usr/local/cuda, a LibTorch named by POROS_TORCH_ROOT (the folder that holds torch/).
Without apt-get or without root nothing is installed system-wide; missing packages are named.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=$root/.deps
peers=no unsloth=no slurm=no build=yes preset=release
while [ $# -gt 0 ]; do
  case $1 in
    --peers) peers=yes ;;
    --peers=all) peers=yes unsloth=yes ;;
    --slurm) slurm=yes ;;
    --no-build) build=no ;;
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --prefix) prefix=${2:?--prefix needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)

say() { printf '== %s\n' "$*"; }
die() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }

# Two runs at once would trip over each other's half-made folders.
exec 9>"$prefix/.lock"
flock 9

# --- 1. system packages ---------------------------------------------------------------------------
have() {
  case $1 in
    command:*) command -v "${1#command:}" >/dev/null ;;
    header:*) printf '#include <%s>\n' "${1#header:}" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
    python:*) python3 -c "import ${1#python:}" 2>/dev/null ;;
    file:*) [ -e "${1#file:}" ] ;;
  esac
}
missing=()
lists=("$root/scripts/requirements/debian.txt")
if [ $slurm = yes ]; then lists+=("$root/scripts/requirements/debian-slurm.txt"); fi
while read -r package proof _; do
  [[ -z $package || $package == \#* ]] && continue
  have "$proof" || missing+=("$package")
done < <(cat "${lists[@]}")
if [ ${#missing[@]} -gt 0 ]; then
  say "system packages to install: ${missing[*]}"
  command -v apt-get >/dev/null || die "no apt-get here; install these by hand: ${missing[*]}"
  sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; ask for: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >"$prefix/apt.log" 2>&1 || { tail -n 20 "$prefix/apt.log" >&2; die "apt-get failed"; }
else
  say "system packages: all there"
fi

# --- 2. LibTorch -----------------------------------------------------------------------------------
cuda=no
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then cuda=yes; fi
torch_version=2.11.0
site=${POROS_TORCH_ROOT:-$prefix/site}
pip=(python3 -m pip --disable-pip-version-check --quiet)
# pip can't install into a folder in one step; the folder gets its name when it is whole.
install_site() {  # install_site STAMP PACKAGE...
  local stamp=$prefix/site/.$1
  shift
  [ -e "$stamp" ] && return
  "${pip[@]}" install --no-deps --no-compile --upgrade --target "$prefix/site" "$@" 2>"$prefix/pip.log" ||
    { tail -n 20 "$prefix/pip.log" >&2; die "pip could not install $*"; }
  touch "$stamp"
}
if [ -n "${POROS_TORCH_ROOT:-}" ]; then
  [ -e "$site/torch/include/ATen/ATen.h" ] || die "POROS_TORCH_ROOT=$site holds no torch/include/ATen/ATen.h"
  say "LibTorch: $site"
else
  say "LibTorch $torch_version in $prefix/site (1.4 GB)"
  install_site "torch-$torch_version" "torch==$torch_version"
  # libtorch_cpu.so itself needs these two; a toolkit would supply them as well.
  install_site runtime nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
  # libtorch_cuda.so needs these three beside a CUDA 13 toolkit with cuDNN and NCCL.
  if [ $cuda = yes ]; then
    install_site cuda nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.15.1.6
  fi
fi

# --- 3. Python environments ------------------------------------------------------------------------
# A stamp with the hash of the lists and places says that an environment is whole and current; one in
# a checkout that was moved is made again.
make_environment() {  # make_environment NAME LIST...
  local name=$1 folder=$prefix/$1 stamp list
  shift
  stamp=$({ cat "$@"; echo "$folder $site"; } | sha256sum | cut -c1-16)
  if [ "$(cat "$folder/.stamp" 2>/dev/null)" = "$stamp" ]; then
    say "Python environment '$name': up to date"
    return
  fi
  say "Python environment '$name' in $folder"
  rm -rf "$folder"
  python3 -m venv "$folder"
  for list in "$@"; do
    "$folder/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps -r "$list" 2>"$prefix/pip.log" ||
      { tail -n 20 "$prefix/pip.log" >&2; die "pip could not install $list"; }
  done
  if [ "$name" = peers ]; then
    "$folder/bin/python" - "$site" <<'PY'
import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "poros_torch.pth").write_text(sys.argv[1] + "\n")
PY
  fi
  printf '%s\n' "$stamp" >"$folder/.stamp"
}
make_environment python "$root/scripts/requirements/base.txt"
if [ $peers = yes ]; then
  if ! python3 - "$site" <<'PY'; then
import ctypes, glob, os, sys
# Can libtorch_cuda.so be loaded (Python's torch always loads it) with what is there?
site = sys.argv[1]
for path in glob.glob(os.path.join(site, "nvidia", "*", "lib", "*.so*")):
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        pass
try:
    ctypes.CDLL(os.path.join(site, "torch", "lib", "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.path.join(site, "torch", "lib", "libtorch_cuda.so"))
except OSError as error:
    print("==", error)
    sys.exit(1)
PY
    [ -z "${POROS_TORCH_ROOT:-}" ] || die "the torch in POROS_TORCH_ROOT can't be loaded; see the line above"
    say "CUDA libraries that Python's torch needs even without a GPU (3 GB)"
    install_site python-torch -r "$root/scripts/requirements/torch-libraries.txt"
  fi
  lists=("$root/scripts/requirements/base.txt" "$root/scripts/requirements/peers-cpu.txt")
  if [ $unsloth = yes ]; then lists+=("$root/scripts/requirements/peers-unsloth.txt"); fi
  make_environment peers "${lists[@]}"
fi

# --- 4. build ---------------------------------------------------------------------------------------
if [ $build = yes ]; then
  say "build (preset $preset)"
  cd "$root"
  cmake --preset "$preset" -DPOROS_TORCH_ROOT="$site" -DPOROS_PREFIX="$prefix" --log-level=NOTICE
  cmake --build --preset "$preset"
  say "done: $root/build/bin/poros, $root/build/bin/poros-cell"
else
  say "done"
fi
