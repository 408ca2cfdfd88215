#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Campaigns on a real Slurm, in a lab of three nodes on this machine (slurm/lab/lab.sh).

lab_test.py --build BUILD_FOLDER SCENARIO

Each scenario starts a lab of its own, submits a campaign of small CPU cells in it and looks at the
records that are left. Ends with 77 where no lab can run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = ROOT / "slurm" / "lab" / "lab.sh"
SKIPPED = 77

SPEC = """\
spec_id: lab
device: cpu
parity: "off"
hardware: [{types}]
models: [{{model_id: {root}/configs/models/kjv-qwen2}}]
methods: [resident]
precisions: [nf4]
sweep: {{training.seed: {seeds}}}
training:
  steps: {steps}
  warmup_steps: 1
  n_passes: 1
  seq_len: 64
  batch_size: 1
  gradient_accumulation_steps: 1
  dataset: {{path: {root}/configs/data/alice.txt, format: text}}
"""

Receipt = dict[str, object]


class Lab:
    """A running lab and one campaign in it."""

    def __init__(self, build: pathlib.Path, name: str) -> None:
        self.poros = build / "bin" / "poros"
        self.folder = build / "tests" / "slurm-labs" / f"{name}.{os.getpid()}"
        self.lab = self.folder / "lab"
        self.campaign = self.folder / "campaign"
        self.folder.mkdir(parents=True)

    def start(self) -> None:
        done = subprocess.run([LAB, "start", self.lab, "--for", "900"], text=True,
                              capture_output=True)
        if done.returncode != 0:
            print(done.stderr.strip())
            sys.exit(SKIPPED if done.returncode == SKIPPED else 1)

    def stop(self) -> None:
        subprocess.run([LAB, "stop", self.lab], check=True)
        shutil.rmtree(self.folder)

    def run(self, *command: object, check: bool = True) -> str:
        """Runs a command on the login node. Returns what it printed."""
        words = [LAB, "run", self.lab, *command]
        done = subprocess.run([str(word) for word in words], text=True, capture_output=True)
        if check and done.returncode != 0:
            said = done.stdout + done.stderr
            raise AssertionError(f"{command}: exit code {done.returncode}\n{said}")
        return done.stdout

    def profile(self, **changes: str) -> pathlib.Path:
        """The lab's profile with some values changed."""
        text = (ROOT / "slurm" / "lab" / "lab.yaml").read_text()
        kept = [line for line in text.splitlines() if line.split(":")[0] not in changes]
        gpu_lines = {"time": changes.pop("gpu_time", None)}
        lines = [f"{key}: {value}" for key, value in changes.items()] + kept
        if gpu_lines["time"]:
            lines = [f"    time: {gpu_lines['time']}" if line.startswith("    time:") else line
                     for line in lines]
        path = self.folder / "profile.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def spec(self, types: list[str], cells: int, steps: int) -> pathlib.Path:
        """A matrix of so many cells a GPU type, each of so many steps of some 30 ms."""
        path = self.folder / "matrix.yaml"
        hardware = ", ".join(f"{{gpu_name: {gpu}}}" for gpu in types)
        path.write_text(SPEC.format(types=hardware, root=ROOT, steps=steps,
                                    seeds=list(range(1, cells + 1))))
        return path

    def submit(self, spec: pathlib.Path, profile: pathlib.Path, *more: str) -> str:
        return self.run(self.poros, "bench", "submit", spec, "--cluster", profile,
                        "--output-dir", self.campaign, *more)

    def status(self) -> str:
        return self.run("squeue", "--noheader", "--format=%i %j %T %r %N")

    def wait(self, what: str, test: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not test():
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s in vain for {what}\n{self.status()}")
            time.sleep(0.5)

    def wait_for_end(self, seconds: float = 240) -> None:
        self.wait("an empty queue", lambda: not self.status().strip(), seconds)

    def receipts(self) -> list[Receipt]:
        """Of all journals: those of the shards, and what only the root has."""
        journals = sorted(self.campaign.glob("shards/*/results.jsonl"))
        root = self.campaign / "results.jsonl"
        lines = [line for path in journals for line in path.read_text().splitlines()]
        if root.exists():
            lines += [line for line in root.read_text().splitlines() if '"shard":' not in line]
        receipts = []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):  # a torn tail is no record
                receipts.append(json.loads(line))
        return receipts

    def done(self) -> dict[str, str]:
        """The record of each cell that is measured. None is measured twice."""
        records: dict[str, str] = {}
        for receipt in self.receipts():
            if receipt["kind"] == "attempt" and receipt["status"] == "ok":
                key, path = str(receipt["key"]), str(receipt["artifact_path"])
                assert records.setdefault(key, path) == path, f"{key} was measured twice"
        return records

    def worlds(self) -> dict[str, dict[str, dict[str, object]]]:
        """The ranks that have measured, by start of a job (<job>.<restart>) and device."""
        worlds: dict[str, dict[str, dict[str, object]]] = {}
        for path in self.done().values():
            driver = json.loads((self.campaign / path).read_text())["driver"]
            start = f"{driver['job']}.{driver['restart'] or 0}"
            device = f"{driver['host']}:{driver['gpu_token']}"
            known = worlds.setdefault(start, {}).setdefault(device, driver)
            assert known["rank"] == driver["rank"], f"two ranks of job {start} had {device}"
        return worlds

    def ends(self) -> dict[str, dict[str, object]]:
        """How the starts of the jobs ended, by <job>.<restart>."""
        return {path.stem: json.loads(path.read_text())
                for path in (self.campaign / "slurm" / "ends").glob("*.json")}

    def logs(self) -> str:
        return "".join(f"--- {path.name}\n{path.read_text()}"
                       for path in sorted((self.campaign / "slurm" / "logs").glob("*")))

    def check_complete(self, cells: int) -> None:
        """Each cell is measured once, everything is gathered, reported and traceable."""
        assert len(self.done()) == cells, self.done()
        gathered = [end for end in self.ends().values() if end["outcome"] == "gathered"]
        assert [end["exit_code"] for end in gathered] == [0], self.ends()
        status = json.loads(self.run(self.poros, "bench", "status", self.campaign, "--json"))
        assert status["counts"]["done"] == cells, status["counts"]
        self.run(self.poros, "bench", "verify", self.campaign)
        for name in ("results.jsonl", "campaign.h5", "report.html"):
            assert (self.campaign / name).exists(), name


@contextlib.contextmanager
def running_lab(build: pathlib.Path, name: str) -> Iterator[Lab]:
    lab = Lab(build, name)
    lab.start()
    try:
        yield lab
    except BaseException:
        print(lab.logs())
        log = lab.lab / "log" / "slurmctld.log"
        print("".join(log.read_text().splitlines(keepends=True)[-40:]))
        raise
    finally:
        lab.stop()


def leaves_no_traces(build: pathlib.Path) -> None:
    """Two labs at once don't meet, and their end leaves nothing."""
    def traces() -> tuple[str, str, str]:
        links = subprocess.run(["ip", "-brief", "link"], text=True, capture_output=True).stdout
        mounts = pathlib.Path("/proc/self/mounts").read_text()
        slurm = subprocess.run(["ps", "-eo", "args"], text=True, capture_output=True).stdout
        own = [line for line in slurm.splitlines() if f".{os.getpid()}/" in line]
        return links, mounts, "\n".join(own)

    before = traces()
    with running_lab(build, "one") as one, running_lab(build, "two") as two:
        assert traces()[2], "the labs' processes can be seen"
        for lab in (one, two):
            nodes = lab.run("sinfo", "--noheader", "--Node", "--partition=all", "--format=%n %G")
            assert nodes.split("\n")[0] == "n1 gpu:a100:2", nodes
            assert "n3 gpu:b300:2" in nodes
        one.run("sbatch", "--wrap", "sleep 60", "--output=/dev/null")
        assert one.status().strip() and not two.status().strip()
        busy = subprocess.run([LAB, "start", one.lab], text=True, capture_output=True)
        assert busy.returncode == 1 and "runs there already" in busy.stderr, busy.stderr
        folders = (one.folder, two.folder)
    assert traces() == before, traces()
    assert not any(folder.exists() for folder in folders)


def both_types(build: pathlib.Path) -> None:
    """A job a GPU type, one world over two nodes, one report; each rank has its own device."""
    with running_lab(build, "both_types") as lab:
        profile, spec = lab.profile(), lab.spec(["A100", "B300"], 8, 40)
        said = lab.submit(spec, profile)
        assert "2 x 2 A100" in said and "1 x 2 B300" in said, said
        again = lab.submit(spec, profile)
        assert "already submitted" in again, again
        status = json.loads(lab.run(lab.poros, "bench", "status", lab.campaign, "--json"))
        jobs = {job["label"]: job["state"] for job in status["slurm"]["jobs"]}
        assert jobs["gather"] == "PENDING" and set(jobs) == {"a100", "b300", "gather"}, status
        lab.wait_for_end()
        lab.check_complete(16)
        worlds = sorted(lab.worlds().values(), key=len)
        assert sorted(worlds[1]) == ["n1:0", "n1:1", "n2:0", "n2:1"], worlds
        assert sorted(worlds[0]) == ["n3:0", "n3:1"], worlds
        assert {rank["shard"] for rank in worlds[1].values()} == {"a100"}
        jobs = list((lab.campaign / "slurm" / "jobs").glob("*.json"))
        assert len(jobs) == 3, jobs


def plain_sbatch(build: pathlib.Path) -> None:
    """slurm/campaign.sbatch by hand, as the README shows it."""
    with running_lab(build, "plain_sbatch") as lab:
        spec = lab.spec(["A100"], 8, 20)
        lab.run("env", f"POROS={lab.poros}", "POROS_GPU_TYPE=A100", "POROS_THREADS=1", "sbatch",
                "--wait", "--partition=a100", "--nodes=2", "--gpus-per-node=2", "--cpus-per-gpu=1",
                f"--chdir={lab.folder}", "--time=8", ROOT / "slurm" / "campaign.sbatch", spec,
                lab.campaign)
        assert len(lab.done()) == 8, lab.done()
        assert (lab.campaign / "report.html").exists()
        assert set(next(iter(lab.worlds().values()))) <= {"n1:0", "n1:1", "n2:0", "n2:1"}
        assert [end["outcome"] for end in lab.ends().values()] == ["complete"], lab.ends()


def cancel(build: pathlib.Path) -> None:
    """Cancelled: what is finished stays, the end is named, submitting again goes on."""
    with running_lab(build, "cancel") as lab:
        profile, spec = lab.profile(), lab.spec(["A100"], 12, 100)
        lab.submit(spec, profile)
        lab.wait("two finished cells", lambda: len(lab.done()) >= 2)
        said = lab.run(lab.poros, "bench", "cancel", lab.campaign)
        assert said.startswith("cancelled: "), said
        lab.wait_for_end(60)
        before = lab.done()
        assert 2 <= len(before) < 12, before
        assert [end["outcome"] for end in lab.ends().values()] == ["ended from outside"], lab.ends()
        assert "no job of it is queued" in lab.run(lab.poros, "bench", "cancel", lab.campaign)
        lab.submit(spec, profile)
        lab.wait_for_end()
        lab.check_complete(12)
        assert before.items() <= lab.done().items()


def single_job(build: pathlib.Path) -> None:
    """One job, one world, over nodes of both types."""
    with running_lab(build, "single_job") as lab:
        lab.submit(lab.spec(["A100", "B300"], 12, 60), lab.profile(), "--single-job")
        lab.wait_for_end()
        lab.check_complete(24)
        (ranks,) = lab.worlds().values()
        assert sorted(ranks) == ["n1:0", "n1:1", "n2:0", "n2:1", "n3:0", "n3:1"], ranks
        gpus = {receipt["key"]: receipt["host"] for receipt in lab.receipts()
                if receipt["kind"] == "attempt"}
        cells = json.loads((lab.campaign / "spec.json").read_text())["cells"]
        on_n3 = {cells[key]["gpu"] for key, host in gpus.items() if host == "n3"}
        assert on_n3 == {"B300"}, gpus


def time_limit(build: pathlib.Path, **changes: str) -> None:
    """Warned before the time limit: drains, is requeued, goes on, is gathered once, at the end."""
    with running_lab(build, "time_limit") as lab:
        # Slurm warns up to a minute early, so between 20 and 80 s of the limit's two minutes are left.
        lab.submit(lab.spec(["A100"], 60, 150), lab.profile(gpu_time="2m", warn_s="40s", **changes))
        lab.wait_for_end(1500)
        lab.check_complete(60)
        outcomes = [str(end["outcome"]) for end in lab.ends().values()]
        assert sum("goes on later" in outcome for outcome in outcomes) >= 1, outcomes
        assert outcomes.count("complete") == 1, outcomes
        assert len(lab.worlds()) >= 2, lab.worlds()


def time_limit_mpirun(build: pathlib.Path) -> None:
    time_limit(build, launcher="mpirun")


def no_requeue(build: pathlib.Path) -> None:
    """Where requeueing is forbidden a job submits its continuation, and the gathering waits."""
    time_limit(build, requeue="false")


def preempted(build: pathlib.Path) -> None:
    """A job of higher priority takes the nodes; the campaign goes on after it."""
    with running_lab(build, "preempted") as lab:
        lab.submit(lab.spec(["A100"], 16, 100), lab.profile())
        lab.wait("first cells", lambda: len(lab.done()) >= 4)
        lab.run("srun", "--partition=urgent", "--nodes=2", "--nodelist=n1,n2", "--exclusive",
                "true")
        lab.wait_for_end(400)
        lab.check_complete(16)
        assert len(lab.worlds()) == 2, lab.worlds()


def lose(build: pathlib.Path, name: str, strike: Callable[[Lab], None]) -> None:
    with running_lab(build, name) as lab:
        # Slurm takes up to half a minute to see what happened.
        lab.submit(lab.spec(["A100"], 32, 150), lab.profile())
        lab.wait("first cells", lambda: len(lab.done()) >= 4)
        before = lab.done()
        strike(lab)
        lab.wait_for_end(900)
        lab.check_complete(32)
        assert before.items() <= lab.done().items(), "a finished cell was lost or redone"
        assert len(lab.worlds()) >= 2, lab.worlds()


def slurmd_killed(build: pathlib.Path) -> None:
    """slurmd of a node is killed, its ranks live on: Slurm gives it up and requeues the job."""
    def strike(lab: Lab) -> None:
        subprocess.run([LAB, "node", lab.lab, "n2", "pkill", "-KILL", "-x", "slurmd"], check=True)

    lose(build, "slurmd_killed", strike)


def node_lost(build: pathlib.Path) -> None:
    """A node loses power: the job goes on with the nodes that are left."""
    def strike(lab: Lab) -> None:
        subprocess.run([LAB, "fail", lab.lab, "n2"], check=True)

    lose(build, "node_lost", strike)


SCENARIOS = {function.__name__: function for function in (
    leaves_no_traces, both_types, plain_sbatch, cancel, single_job, time_limit, time_limit_mpirun,
    no_requeue, preempted, slurmd_killed, node_lost)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    arguments = parser.parse_args()
    SCENARIOS[arguments.scenario](arguments.build.resolve())


if __name__ == "__main__":
    main()
