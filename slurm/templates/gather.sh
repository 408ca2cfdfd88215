#!/usr/bin/env bash
@DIRECTIVES@
# Written by `poros bench submit`: joins what a campaign's jobs have left and makes its reports.
set -uo pipefail

@SETTINGS@

@PROLOGUE@

say() { printf '%s job %s: %s\n' "$(date +%FT%T%z)" "$SLURM_JOB_ID" "$*"; }

note_end() {  # note_end CODE WORDS
  local file=$campaign/slurm/ends/$SLURM_JOB_ID.0.json
  mkdir -p "$campaign/slurm/ends" &&
    printf '{"job_id": "%s", "restart": 0, "exit_code": %s, "outcome": "%s", "at": "%s"}\n' \
      "$SLURM_JOB_ID" "$1" "$2" "$(date -u +%FT%TZ)" >"$file.new" && mv "$file.new" "$file"
}

# A job that continues another was submitted after this one: wait for it too.
waiting=''
while read -r id; do
  [ "$id" = "$SLURM_JOB_ID" ] || [ ! -e "$campaign/slurm/jobs/$id.json" ] || waiting+=":$id"
done < <(squeue --noheader --me --format=%F | sort -u)
if [ -n "$waiting" ]; then
  if again=$(sbatch --parsable --dependency="afterany$waiting" "$0"); then
    again=${again%%;*}
    printf '{"job_id": "%s", "role": "gather", "continues": "%s"}\n' "$again" "$SLURM_JOB_ID" \
      >"$campaign/slurm/jobs/$again.json"
    say "work goes on in job(s) ${waiting#:}; gathers after them, as job $again"
    note_end 75 "work goes on, gathers later as job $again"
    exit 75
  fi
  say "work goes on in job(s) ${waiting#:}; sbatch failed, so this gathers what there is"
fi

"${program[@]}" bench gather "$campaign" &&
  "${program[@]}" bench report "$campaign"
code=$?
say "gathered (exit code $code)"
note_end "$code" "gathered"
exit "$code"
