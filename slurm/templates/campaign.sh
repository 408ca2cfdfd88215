#!/usr/bin/env bash
@DIRECTIVES@
# Written by `poros bench submit`: a campaign's work on one kind of node. docs/slurm.md explains it.
set -uo pipefail

@SETTINGS@

@PROLOGUE@

# --- the life of the job (the same in campaign.sbatch and templates/) ----------------------------------
job=$SLURM_JOB_ID  # of an array's task too, where `name` is 12_3
array_task=${SLURM_ARRAY_TASK_ID:-}
name=${SLURM_ARRAY_JOB_ID:-$job}${array_task:+_$array_task}
restart=$((${POROS_RESTART:-0} + ${SLURM_RESTART_COUNT:-0}))
script_arguments=("$@") signal='' world='' world_begun=0 launch_s=${POROS_LAUNCH_S:-5}

say() { printf '%s job %s, start %s: %s\n' "$(date +%FT%T%z)" "$name" "$((restart + 1))" "$*"; }

# How this start ended, for `poros bench status`; the campaign's own records don't depend on it.
note_end() {  # note_end CODE WORDS
  local file=$campaign/slurm/ends/$name.$restart.json
  mkdir -p "$campaign/slurm/ends" &&
    printf '{"job_id": "%s", "restart": %s, "exit_code": %s, "outcome": "%s", "at": "%s"}\n' \
      "$name" "$restart" "$1" "$2" "$(date -u +%FT%TZ)" >"$file.new" && mv "$file.new" "$file"
}

finish() {  # finish CODE WORDS
  say "$2 (exit code $1)"
  note_end "$1" "$2"
  exit "$1"
}

# The ranks start no cell that would not end before the job does. Always asked for: what a newer Slurm
# sets could be the submitting job's.
end=$(squeue --noheader --jobs="$job" --format=%e 2>/dev/null | head -n 1)
SLURM_JOB_END_TIME=$(date --date="${end:-unknown}" +%s 2>/dev/null) || unset SLURM_JOB_END_TIME
export SLURM_JOB_END_TIME POROS_WARN_S=$warn_s
unset SLURM_CPUS_PER_GPU  # srun takes it for a second word on its own --cpus-per-task

# The ranks are asked to drain (USR1) in either case: srun and mpirun pass that on, while a TERM would
# make them kill the ranks.
# shellcheck disable=SC2317  # called by the traps
on_signal() {
  [ "$signal" = TERM ] || signal=$1  # a warning never hides that the job is being ended
  say "signal $1"
  [ -n "$world" ] || return 0
  # A launcher that is still starting its ranks can break on a signal that it is to pass on.
  local age=$((SECONDS - world_begun))
  if [ "$age" -ge "$launch_s" ]; then
    kill -s USR1 "$world" 2>/dev/null
  else
    (sleep $((launch_s - age)) && kill -s USR1 "$world") >/dev/null 2>&1 &
  fi
}
trap 'on_signal USR1' USR1
trap 'on_signal TERM' TERM

run_world() {
  "${launch[@]}" "${program[@]}" "${arguments[@]}" &
  world=$! world_begun=$SECONDS
  wait "$world"
  while kill -0 "$world" 2>/dev/null; do wait "$world"; done
  wait "$world"
  code=$?
  world=''
}

go_on_later() {  # go_on_later WORDS
  if [ "$restart" -ge "$max_restarts" ]; then
    finish 75 "$1; restarted $restart times, which is the limit: left stopped"
  fi
  sync -f "$campaign" 2>/dev/null
  note_end 75 "$1; goes on later"
  if [ "$requeue" = yes ]; then
    say "$1; asks to be requeued"
    trap '' TERM USR1
    scontrol requeue "$job" && exit 75  # Slurm ends the script in this moment
    finish 75 "$1; scontrol requeue failed: left stopped"
  fi
  local id command=(sbatch --parsable --dependency="afterany:$job" --export="ALL,POROS_RESTART=$((restart + 1)),POROS_CONTINUES=$job")
  [ -z "$array_task" ] || command+=(--array="$array_task")
  id=$("${command[@]}" "$0" "${script_arguments[@]}") || finish 75 "$1; sbatch failed: left stopped"
  id=${id%%;*}
  mkdir -p "$campaign/slurm/jobs" &&
    printf '{"job_id": "%s", "role": "work", "continues": "%s"}\n' "$id" "${name%%_*}" \
      >"$campaign/slurm/jobs/$id.json"
  say "$1; goes on as job $id"
  exit 75
}

say "begins on $SLURM_JOB_NODELIST, ends by ${end:-an unknown time}"
limit_s=$((${SLURM_JOB_END_TIME:-0} - $(date +%s)))
if [ -n "${SLURM_JOB_END_TIME:-}" ] && [ "$limit_s" -le "$warn_s" ]; then
  finish 2 "refused, the time limit leaves nothing before the warning time of $warn_s s"
fi
for try in 1 2 3; do
  run_world
  case $code in
    0) finish 0 "complete" ;;
    1) finish 1 "ran, but cells failed" ;;
    2) finish 2 "refused, wrong input" ;;
  esac
  case $signal in
    TERM) finish 75 "ended from outside" ;;
    USR1) go_on_later "the time limit is near" ;;
  esac
  if [ "$code" = 75 ]; then
    # At the beginning of a job there is as much time as there will ever be.
    [ "$((SECONDS * 10))" -ge "$limit_s" ] || finish 75 "no cell that is left fits the time limit: left stopped"
    go_on_later "stopped early"
  fi
  say "the ranks ended with exit code $code on try $try of 3; every finished pass is kept"
done
finish "$code" "the ranks broke down three times"
