#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm, in a lab of three nodes on this machine (slurm/lab/lab.sh).

lab_test.py --build BUILD_FOLDER SCENARIO

Each scenario starts a lab of its own, submits a campaign in it and looks at what is left. The ranks
are those of lab_world.cpp, whose cells only take time. Ends with 77 where no lab can run.
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
hardware: {{gpu_name: {gpu}}}
models: [{models}]
methods: [poros, resident]
training: {{steps: 8, warmup_steps: 2}}
"""


class Lab:
    """A running lab and one campaign in it."""

    def __init__(self, build: pathlib.Path, name: str) -> None:
        self.world = build / "tests" / "lab_world"
        self.poros = build / "bin" / "poros"
        self.folder = build / "tests" / "slurm-labs" / f"{name}.{os.getpid()}"
        self.lab = self.folder / "lab"
        self.campaign = self.folder / "campaign"
        self.campaign.mkdir(parents=True)

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
        """The lab's profile with lab_world as its program and some values changed."""
        text = (ROOT / "slurm" / "lab" / "lab.yaml").read_text()
        changes["program"] = str(self.world)
        kept = [line for line in text.splitlines() if line.split(":")[0] not in changes]
        gpu_lines = {"time": changes.pop("gpu_time", None)}
        lines = [f"{key}: {value}" for key, value in changes.items()] + kept
        if gpu_lines["time"]:
            lines = [f"    time: {gpu_lines['time']}" if line.startswith("    time:") else line
                     for line in lines]
        path = self.folder / "profile.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def specs(self, types: list[str], models: int = 4) -> list[pathlib.Path]:
        paths = []
        for gpu in types:
            path = self.folder / f"{gpu}.yaml"
            names = ", ".join(f"{{model_id: ./m{i}}}" for i in range(models))
            path.write_text(SPEC.format(gpu=gpu, models=names))
            paths.append(path)
        return paths

    def cells(self, *cells: tuple[str, int, float]) -> int:
        """Writes the cells: (type, how many, seconds each). Returns their number."""
        lines = [f"{gpu} {seconds}" for gpu, count, seconds in cells for _ in range(count)]
        (self.campaign / "cells").write_text("\n".join(lines) + "\n")
        return len(lines)

    def submit(self, specs: list[pathlib.Path], profile: pathlib.Path, *more: str) -> str:
        return self.run(self.world, "submit", *specs, "--", profile, self.campaign, *more)

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

    def done(self) -> dict[int, str]:
        """Who finished each cell."""
        folder = self.campaign / "done"
        return {int(path.name): path.read_text().strip() for path in folder.glob("*")}

    def worlds(self) -> dict[str, list[dict[str, object]]]:
        """The ranks of each start, by <job>.<restart>."""
        return {path.stem: json.loads(path.read_text())
                for path in sorted((self.campaign / "worlds").glob("*.json"))}

    def ends(self) -> dict[str, dict[str, object]]:
        """How the starts of the jobs ended, by <job>.<restart>."""
        return {path.stem: json.loads(path.read_text())
                for path in (self.campaign / "slurm" / "ends").glob("*.json")}

    def logs(self) -> str:
        return "".join(f"--- {path.name}\n{path.read_text()}"
                       for path in sorted((self.campaign / "slurm" / "logs").glob("*")))

    def check_complete(self, cells: int, fenced: bool = False) -> None:
        """Each cell counted once; with `fenced` a rank that Slurm lost may have tried again."""
        assert sorted(self.done()) == list(range(cells)), self.done()
        assert fenced or not list((self.campaign / "twice").glob("*")), "a cell was run twice"
        gathered = [end for end in self.ends().values() if end["outcome"] == "gathered"]
        assert [end["exit_code"] for end in gathered] == [0], self.ends()


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


def devices_of(ranks: list[dict[str, object]]) -> list[str]:
    return sorted(f"{rank['host']}:{rank['token']}" for rank in ranks)


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
        cells = lab.cells(("A100", 6, 2), ("B300", 3, 2))
        profile = lab.profile()
        said = lab.submit(lab.specs(["A100", "B300"]), profile)
        assert "2 x 2 A100" in said and "1 x 2 B300" in said, said
        again = lab.submit(lab.specs(["A100", "B300"]), profile)
        assert "already submitted" in again, again
        status = json.loads(lab.run(lab.poros, "bench", "status", lab.campaign, "--json"))
        jobs = {job["label"]: job["state"] for job in status["slurm"]["jobs"]}
        assert jobs["gather"] == "PENDING" and set(jobs) == {"a100", "b300", "gather"}, status
        lab.wait_for_end()
        lab.check_complete(cells)
        worlds = sorted(lab.worlds().values(), key=len)
        assert devices_of(worlds[1]) == ["n1:0", "n1:1", "n2:0", "n2:1"], worlds
        assert devices_of(worlds[0]) == ["n3:0", "n3:1"], worlds
        assert {rank["type"] for rank in worlds[1]} == {"A100"}
        assert all(0 < float(str(rank["seconds_left"])) < 300 for rank in worlds[1]), worlds
        jobs = list((lab.campaign / "slurm" / "jobs").glob("*.json"))
        assert len(jobs) == 3, jobs


def plain_sbatch(build: pathlib.Path) -> None:
    """slurm/campaign.sbatch by hand, as the README shows it."""
    with running_lab(build, "plain_sbatch") as lab:
        cells = lab.cells(("A100", 4, 1))
        spec = lab.specs(["A100"])[0]
        lab.run("env", f"POROS={lab.world}", "POROS_GPU_TYPE=A100", "sbatch", "--wait",
                "--partition=a100", "--nodes=2", "--gpus-per-node=2", "--cpus-per-gpu=1",
                f"--chdir={lab.folder}", "--time=8", ROOT / "slurm" / "campaign.sbatch", spec,
                lab.campaign)
        assert sorted(lab.done()) == list(range(cells)), lab.done()
        assert len(next(iter(lab.worlds().values()))) == 4
        assert [end["outcome"] for end in lab.ends().values()] == ["complete"], lab.ends()


def cancel(build: pathlib.Path) -> None:
    """Cancelled: what is finished stays, the end is named, submitting again goes on."""
    with running_lab(build, "cancel") as lab:
        cells = lab.cells(("A100", 4, 1), ("A100", 4, 8))
        profile, specs = lab.profile(), lab.specs(["A100"])
        lab.submit(specs, profile)
        lab.wait("four finished cells", lambda: len(lab.done()) >= 4)
        said = lab.run(lab.poros, "bench", "cancel", lab.campaign)
        assert said.startswith("cancelled: "), said
        lab.wait_for_end(60)
        assert len(lab.done()) == 4, lab.done()
        assert [end["outcome"] for end in lab.ends().values()] == ["ended from outside"], lab.ends()
        assert "no job of it is queued" in lab.run(lab.poros, "bench", "cancel", lab.campaign)
        lab.submit(specs, profile)
        lab.wait_for_end()
        lab.check_complete(cells)


def single_job(build: pathlib.Path) -> None:
    """One job, one world, over nodes of both types."""
    with running_lab(build, "single_job") as lab:
        cells = lab.cells(("A100", 6, 2), ("B300", 3, 2))
        lab.submit(lab.specs(["A100", "B300"], models=3), lab.profile(), "--single-job")
        lab.wait_for_end()
        lab.check_complete(cells)
        (ranks,) = lab.worlds().values()
        types = {str(rank["host"]): rank["type"] for rank in ranks}
        assert types["n3"] == "B300" and set(types.values()) == {"A100", "B300"}, ranks
        assert len(devices_of(ranks)) == len(set(devices_of(ranks))) == 6, ranks


def time_limit(build: pathlib.Path, **changes: str) -> None:
    """Warned before the time limit: drains, is requeued, goes on, is gathered once, at the end."""
    with running_lab(build, "time_limit") as lab:
        # A minute is the shortest limit; four ranks have 48 s of work each, and 45 s to be warned.
        cells = lab.cells(("A100", 48, 4))
        lab.submit(lab.specs(["A100"]), lab.profile(gpu_time="1m", warn_s="40s", **changes))
        lab.wait_for_end(360)
        lab.check_complete(cells)
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
        cells = lab.cells(("A100", 16, 3))
        lab.submit(lab.specs(["A100"]), lab.profile())
        lab.wait("first cells", lambda: len(lab.done()) >= 4)
        lab.run("srun", "--partition=urgent", "--nodes=2", "--nodelist=n1,n2", "--exclusive",
                "true")
        lab.wait_for_end()
        lab.check_complete(cells)
        assert len(lab.worlds()) == 2, lab.worlds()


def lose(build: pathlib.Path, name: str, strike: Callable[[Lab], None]) -> None:
    with running_lab(build, name) as lab:
        # 60 s of work for each rank; Slurm takes up to half a minute to see what happened.
        cells = lab.cells(("A100", 80, 3))
        lab.submit(lab.specs(["A100"]), lab.profile())
        lab.wait("first cells", lambda: len(lab.done()) >= 4)
        before = lab.done()
        strike(lab)
        lab.wait_for_end(360)
        lab.check_complete(cells, fenced=True)
        after = lab.done()
        assert all(after[cell] == who for cell, who in before.items()), "a finished cell was redone"
        assert len(lab.worlds()) == 2, lab.worlds()


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
