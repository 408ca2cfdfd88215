#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Slurm cluster of three nodes on one machine, for tests: n1 and n2 with two fake A100 each, n3 with
# two fake B300 ("fake": character devices that Slurm hands out; cells run on the CPU).
#
# The whole lab lives in PID, network, mount, UTS and IPC namespaces of its own, each node again in
# its own below it. So a node sees only its own processes, as a real one does; names, addresses and
# ports of two labs can't meet; and the end of the lab's first process is the end of everything.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: slurm/lab/lab.sh start DIR [--for SECONDS]   start a lab whose files lie in DIR (not below /tmp)
       slurm/lab/lab.sh run DIR COMMAND...          run a command on its login node
       slurm/lab/lab.sh node DIR NODE COMMAND...    run a command on node n1, n2 or n3
       slurm/lab/lab.sh fail DIR NODE               pull the node's plug: every process on it is killed
       slurm/lab/lab.sh boot DIR NODE               switch a failed node on again
       slurm/lab/lab.sh stop DIR [--keep-logs]      end it and remove DIR (or all of it but its logs)

Needs root, Slurm 22.05 or later with PMIx, munge, iproute2 and util-linux; installs nothing. A lab
ends by itself after SECONDS (default 3600), whatever became of who started it.
Exit codes: 0 done; 2 wrong use; 77 a lab can't run here, the reason is printed; 1 all else.
TEXT
}

nodes=(n1 n2 n3)
declare -A gpu_type=([n1]=a100 [n2]=a100 [n3]=b300)
cpus=4 memory_mib=4000
login_address=10.77.0.1

die() { printf 'lab: %s\n' "$*" >&2; exit 1; }
cannot() { printf 'lab: a Slurm lab cannot run here: %s\n' "$*" >&2; exit 77; }
node_address() { printf '10.77.0.1%s' "${1#n}"; }

wait_until() {  # wait_until SECONDS WHAT COMMAND...
  local left=$(($1 * 10)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $((left--)) -gt 0 ] || die "waited in vain for $what; logs are in $dir/log"
    sleep 0.1
  done
}

check_machine() {
  [ "$(id -u)" = 0 ] || cannot "it needs root for namespaces and device nodes"
  local tool
  for tool in slurmctld slurmd sbatch srun munged ip unshare nsenter mpirun pgrep setpriv; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || cannot "$tool is not installed"
  done
  id munge >/dev/null 2>&1 || cannot "there is no user munge"
  unshare --net --mount --uts --ipc --pid --fork true 2>/dev/null || cannot "namespaces are refused"
}

write_files() {
  mkdir -p "$dir"/{log,etc,state,munge,dev}
  chmod 755 "$dir"
  local node i
  for i in 0 1; do
    mknod "$dir/dev/gpu$i" c 1 3 2>/dev/null || cannot "device nodes can't be made in $dir"
  done
  for node in "${nodes[@]}"; do mkdir -p "$dir/spool.$node" "$dir/tmp.$node" "$dir/shm.$node"; done
  chmod 1777 "$dir"/tmp.* "$dir"/shm.*
  head -c 1024 /dev/urandom >"$dir/munge/key"
  chmod 400 "$dir/munge/key"
  chown -R munge: "$dir/munge"

  {
    printf '127.0.0.1 localhost\n%s login\n' "$login_address"
    for node in "${nodes[@]}"; do printf '%s %s\n' "$(node_address "$node")" "$node"; done
  } >"$dir/etc/hosts"

  # No slurmdbd: sacct fails here as it does on a site whose accounting is down.
  # cred_expire is also how long a requeued job waits (the default is two minutes).
  cat >"$dir/etc/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=login($login_address)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=${POROS_LAB_REQUEUE_DELAY_S:-15}
CryptoType=crypto/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=512
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15
KillWait=10
MinJobAge=3600
InactiveLimit=0
SchedulerParameters=sched_interval=5,batch_sched_delay=1,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobCompType=jobcomp/none
CONF
  for node in "${nodes[@]}"; do
    printf 'NodeName=%s NodeAddr=%s NodeHostname=%s CPUs=%s RealMemory=%s Feature=%s Gres=gpu:%s:2 State=UNKNOWN\n' \
      "$node" "$(node_address "$node")" "$node" $cpus $memory_mib "${gpu_type[$node]}" \
      "${gpu_type[$node]}"
  done >>"$dir/etc/slurm.conf"
  cat >>"$dir/etc/slurm.conf" <<'CONF'
PartitionName=a100 Nodes=n1,n2 MaxTime=60 DefaultTime=10 PriorityTier=1
PartitionName=b300 Nodes=n3 MaxTime=60 DefaultTime=10 PriorityTier=1
PartitionName=all Nodes=n1,n2,n3 Default=YES MaxTime=60 DefaultTime=10 PriorityTier=1
PartitionName=urgent Nodes=n1,n2,n3 MaxTime=60 DefaultTime=10 PriorityTier=10 PreemptMode=OFF
CONF
  for node in "${nodes[@]}"; do
    printf 'NodeName=%s Name=gpu Type=%s File=%s/dev/gpu[0-1]\n' \
      "$node" "${gpu_type[$node]}" "$dir"
  done >"$dir/etc/gres.conf"
  printf 'CgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n' >"$dir/etc/cgroup.conf"
}

# --- inside the lab's namespaces -------------------------------------------------------------------

node_main() {  # first process of a node
  local node=$1
  hostname "$node"
  mount --bind "$dir/tmp.$node" /tmp
  mount --bind "$dir/shm.$node" /dev/shm
  wait_until 20 "the network of $node" ip link show eth0
  ip link set lo up
  ip address add "$(node_address "$node")/24" dev eth0
  ip link set eth0 up
  slurmd -D -N "$node" >>"$dir/log/slurmd.$node.out" 2>&1 &
  # The first process of a PID namespace adopts orphans; the shell reaps them while it waits. A node
  # stays on when its slurmd is killed.
  while :; do sleep 3600 & wait $! || true; done
}

boot_node() {  # on the login node
  local node=$1 pid
  setsid unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
    "$self" _node "$dir" "$node" </dev/null >>"$dir/log/$node.out" 2>&1 &
  pid=$!
  echo "$pid" >"$dir/node.$node.pid"
  wait_until 10 "the namespaces of $node" \
    sh -c "[ \"\$(readlink /proc/$pid/ns/net)\" != \"\$(readlink /proc/self/ns/net)\" ]"
  ip link delete "v$node" 2>/dev/null || true
  ip link add "v$node" type veth peer name eth0 netns "$pid"
  ip link set "v$node" master br0 up
}

login_main() {  # first process of the lab
  hostname login
  mount --bind "$dir/etc/hosts" /etc/hosts
  ip link set lo up
  ip link add br0 type bridge
  ip address add "$login_address/24" dev br0
  ip link set br0 up
  setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --force --num-threads=2 \
    --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" >>"$dir/log/munged.out" 2>&1 &
  wait_until 20 "munged" munge --socket="$dir/munge/socket" --no-input
  slurmctld -D -c >>"$dir/log/slurmctld.out" 2>&1 &
  local node
  for node in "${nodes[@]}"; do boot_node "$node"; done
  touch "$dir/up"
  sleep "$lifetime_s" &
  local sleeper=$!
  while kill -0 $sleeper 2>/dev/null; do wait $sleeper || true; done
}

# --- from outside ------------------------------------------------------------------------------------
first_process() {  # the lab's first process as this machine counts, or nothing
  local outer
  outer=$(cat "$dir/pid" 2>/dev/null) || return 0
  [ "$(ps -o args= -p "$outer" 2>/dev/null | grep -cF -- "_login $dir")" = 1 ] || return 0
  pgrep -P "$outer" || true
}

enter() {  # enter COMMAND...: on the login node, with the lab's environment
  local first
  first=$(first_process)
  [ -n "$first" ] || die "no lab runs in $dir"
  nsenter --target "$first" --net --mount --uts --ipc --pid -- \
    env --chdir="$PWD" SLURM_CONF="$dir/etc/slurm.conf" POROS_LAB="$dir" \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$@"
}

node_shell() {  # node_shell NODE COMMAND...
  local node=$1 outer first
  shift
  outer=$(cat "$dir/node.$node.pid" 2>/dev/null) || die "no node $node in $dir"
  first=$(enter pgrep -P "$outer") || die "node $node is off"
  enter nsenter --target "$first" --net --mount --uts --ipc --pid -- "$@"
}

all_idle() {
  [ "$(enter sinfo --noheader --Node --states=idle --partition=all --format=%N | wc -l)" = 3 ]
}

start() {
  check_machine
  case $dir in /tmp/* | /dev/shm/*) die "$dir: each node has a /tmp of its own; choose another folder" ;; esac
  mkdir -p "$dir"
  exec 9>"$dir/lock"
  flock --nonblock 9 || die "$dir: another start or stop is under way"
  [ -z "$(first_process)" ] || die "$dir: a lab runs there already"
  find "$dir" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +
  write_files
  srun --mpi=list 2>&1 | grep -q pmix || cannot "this Slurm has no PMIx plugin"
  setsid unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
    "$self" _login "$dir" "$lifetime_s" 9>&- </dev/null >"$dir/log/login.out" 2>&1 &
  echo $! >"$dir/pid"
  wait_until 30 "the login node" test -e "$dir/up"
  wait_until 60 "three idle nodes" \
    all_idle
  printf 'lab: three nodes are up; slurm/lab/lab.sh run %s COMMAND\n' "$dir"
}

stop() {
  local first
  [ -d "$dir" ] || return 0
  exec 9>"$dir/lock"
  flock 9
  first=$(first_process)
  if [ -n "$first" ]; then
    kill -KILL "$first"
    wait_until 20 "the lab's end" sh -c "! kill -0 $first"
  fi
  if [ "$1" = --keep-logs ]; then
    find "$dir" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf {} +
  else
    rm -rf "$dir"
  fi
}

[ $# -ge 2 ] || { usage >&2; exit 2; }
self=$(readlink -f "${BASH_SOURCE[0]}")
export PATH=$PATH:/usr/sbin:/sbin
command=$1
dir=$(readlink -m "$2")
shift 2
case $dir in *[!A-Za-z0-9._/-]*) die "$dir: letters, digits and ._/- only" ;; esac
export SLURM_CONF=$dir/etc/slurm.conf
lifetime_s=3600
case $command in
  start)
    if [ "${1:-}" = --for ]; then lifetime_s=${2:?--for needs seconds}; fi
    start
    ;;
  stop) stop "${1:-}" ;;
  run) enter "$@" ;;
  node) node_shell "$@" ;;
  fail) enter sh -c "kill -KILL \$(pgrep -P \$(cat '$dir/node.$1.pid'))" ;;
  boot) enter "$self" _boot "$dir" "$1" ;;
  _login) lifetime_s=$1; login_main ;;
  _node) node_main "$1" ;;
  _boot) boot_node "$1" ;;
  *) usage >&2; exit 2 ;;
esac
