"""A real Slurm cluster on this machine: its own munge key, controller and nodes, everything below one folder.

Needs root and Debian's packages (slurmctld slurmd slurm-client munge; for accounting also slurmdbd and MariaDB).
Touches nothing outside its folder, and ends only the processes that it started, by their ids.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

GPUS = 4
PACKAGES = ("slurmctld", "slurmd", "munged", "sbatch")
CONTROLLER_SETTINGS = """
ClusterName=lab
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_continue
MaxJobCount=200000
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=12
MessageTimeout=10
TCPTimeout=2
KillWait=5
CompleteWait=0
BatchStartTimeout=10
EnforcePartLimits=ALL
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
"""
# Nothing is enforced: jobs may claim more cores than this machine has.
LENIENT = """
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
"""
# Jobs are bound to their cores, and killed above their memory. Processes are found by their parents, as the worker's
# are no members of the job's process group.
STRICT = """
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=task=1
"""
PARTITIONS = """
PartitionName=7d    Nodes=ALL Default=YES MaxTime=7-00:00:00  DefaultTime=1:00:00 PriorityTier=10 PreemptMode=OFF
PartitionName=30d   Nodes=ALL MaxTime=30-00:00:00 DefaultTime=1:00:00 PriorityTier=10 PreemptMode=OFF
PartitionName=debug Nodes=ALL MaxTime=00:01:00 DefaultTime=00:01:00 PriorityTier=20 PreemptMode=OFF
PartitionName=low   Nodes=ALL MaxTime=7-00:00:00 DefaultTime=10 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
"""


@dataclass
class Cluster:
    """`nodes` are names such as `h100-1`; the part before the dash is the type of its GPUs (`cpu`: none)."""

    folder: Path
    nodes: Sequence[str] = ("h100-1", "a100-1", "cpu-1", "cpu-2")
    port: int = field(default_factory=lambda: free_ports(10))
    """The controller's; the nodes' follow it and accounting's is the one before."""
    max_array_size: int = 1001
    min_job_age: int = 86400
    grace_seconds: int = 20
    has_accounting: bool = False
    is_strict: bool = False
    """Whether cores and memory are enforced."""
    cores: int = 4
    _daemons: dict[str, list[int]] = field(default_factory=dict)
    _database: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """What a client of this cluster needs in its environment."""
        return {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    def start(self) -> None:
        """Bring everything up and wait until every node is idle. Raises RuntimeError with the reason."""
        for name in ("etc", "run", "state", "spool", "log", "dev"):
            (self.folder / name).mkdir(parents=True)
        self._start_munge()
        self._write_configuration()
        if self.has_accounting:
            self._start_accounting()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self._until(lambda: self._idle() == len(self.nodes), "all nodes to be idle", seconds=30)

    def stop(self) -> None:
        """Cancel what is queued, end every daemon and what jobs left behind."""
        if self._alive("slurmctld"):
            jobs = self.run("squeue", "--noheader", "--format=%A").stdout.split()
            if jobs:
                self.run("scancel", *set(jobs))
                with contextlib.suppress(RuntimeError):
                    self._until(lambda: not self.run("squeue", "-h", "-t", "R,CG,CF").stdout, "jobs to end", seconds=15)
        for name in [f"slurmd.{node}" for node in self.nodes] + ["slurmctld", "slurmdbd", "mariadbd", "munged"]:
            self._end(name)
        if self._database is not None:
            self._database.wait(timeout=20)
        for process in self._strays():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands against this cluster."""
        return subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60)

    def jobs(self, job_id: str) -> list[dict[str, str]]:
        """`scontrol show job`: one mapping a task."""
        lines = self.run("scontrol", "show", "job", "--oneliner", job_id).stdout.splitlines()
        return [dict(word.split("=", 1) for word in line.split(" ") if "=" in word) for line in lines]

    def start_controller(self) -> None:
        self._daemon("slurmctld", "slurmctld", "-f", self.env["SLURM_CONF"])

    def restart_controller(self) -> None:
        # Asked, not killed: it writes down what it knows every few seconds only, and a job that it forgot has vanished.
        self._end("slurmctld", number=signal.SIGTERM)
        self.start_controller()

    def start_node(self, node: str) -> None:
        self._daemon(f"slurmd.{node}", "slurmd", "-N", node, "-f", self.env["SLURM_CONF"])

    def kill_node(self, node: str) -> None:
        """The node's daemon dies; what it was running goes on, as on a node that lost its network."""
        self._end(f"slurmd.{node}", number=signal.SIGKILL)

    def _start_munge(self) -> None:
        key = self.folder / "etc" / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        private = self.folder / "run" / "munge"
        private.mkdir(mode=0o700)
        subprocess.run(
            [
                _program("munged"),
                "--force",
                f"--key-file={key}",
                f"--socket={self._socket}",
                f"--pid-file={private / 'munged.pid'}",
                f"--log-file={self.folder / 'log' / 'munged.log'}",
                f"--seed-file={private / 'munged.seed'}",
            ],
            check=True,
            capture_output=True,
        )
        self._daemons["munged"] = [int((private / "munged.pid").read_text())]

    @property
    def _socket(self) -> Path:
        return self.folder / "run" / "munge.socket"

    def _write_configuration(self) -> None:
        host = socket.gethostname().split(".")[0]
        folder = self.folder
        nodes, devices = [], ["AutoDetect=off"]
        for number, node in enumerate(self.nodes):
            kind = node.split("-")[0]
            gres = "" if kind == "cpu" else f"Gres=gpu:{kind}:{GPUS} "
            nodes.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.{11 + number} Port={self.port + 1 + number} "
                f"CPUs={self.cores} RealMemory=64000 {gres}Feature={kind}"
            )
            (folder / "spool" / node).mkdir()
            if gres:
                for gpu in range(GPUS):
                    os.mknod(folder / "dev" / f"{node}-gpu{gpu}", 0o20666, os.makedev(1, 3))
                devices.append(f"NodeName={node} Name=gpu Type={kind} File={folder}/dev/{node}-gpu[0-{GPUS - 1}]")
        accounting = ["AccountingStorageType=accounting_storage/none"]
        if self.has_accounting:
            accounting = [
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageHost=127.0.0.1",
                f"AccountingStoragePort={self.port - 1}",
                f"AccountingStoragePass={self._socket}",
                "AccountingStorageTRES=gres/gpu",
                "AccountingStorageEnforce=associations,limits,safe",
            ]
        lines = [
            CONTROLLER_SETTINGS.strip(),
            (STRICT if self.is_strict else LENIENT).strip(),
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={self.port}",
            f"AuthInfo=socket={self._socket},cred_expire=5",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool/%n",
            f"SlurmctldPidFile={folder}/run/slurmctld.pid",
            f"SlurmdPidFile={folder}/run/slurmd.%n.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/slurmd.%n.log",
            f"MaxArraySize={self.max_array_size}",
            f"MinJobAge={self.min_job_age}",
            *accounting,
            *nodes,
            PARTITIONS.strip().format(grace=self.grace_seconds),
        ]
        (folder / "etc" / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "etc" / "gres.conf").write_text("\n".join(devices) + "\n")
        # slurmd 22.05 dies where no cgroup file system is mounted, unless it is told which one not to use.
        (folder / "etc" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start_accounting(self) -> None:
        folder, run = self.folder, self.folder / "run"
        (folder / "etc" / "my.cnf").write_text(
            "[mariadbd]\nuser=root\nskip-networking\nperformance_schema=OFF\nskip-name-resolve\n"
            f"datadir={folder}/db\nsocket={run}/mariadb.sock\npid-file={run}/mariadbd.pid\n"
            f"log-error={folder}/log/mariadbd.log\ninnodb_buffer_pool_size=64M\ninnodb_log_file_size=16M\n"
            "innodb_lock_wait_timeout=900\ninnodb_flush_log_at_trx_commit=0\n"
        )
        defaults = f"--defaults-file={folder}/etc/my.cnf"
        (folder / "db").mkdir(mode=0o700)
        subprocess.run(
            [
                "mariadb-install-db",
                defaults,
                "--user=root",
                "--skip-test-db",
                "--auth-root-authentication-method=socket",
            ],
            check=True,
            capture_output=True,
        )
        with open(folder / "log" / "mariadbd.out", "wb") as log:
            self._database = subprocess.Popen(
                [_program("mariadbd"), defaults],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons["mariadbd"] = [self._database.pid]
        ask = ["mariadb", "--no-defaults", "-S", f"{run}/mariadb.sock", "-e", "select 1"]
        self._until(lambda: subprocess.run(ask, capture_output=True).returncode == 0, "MariaDB", seconds=30)
        configuration = folder / "etc" / "slurmdbd.conf"
        configuration.write_text(
            f"DbdHost={socket.gethostname().split('.')[0]}\nDbdAddr=127.0.0.1\nDbdPort={self.port - 1}\n"
            f"SlurmUser=root\nAuthType=auth/munge\nAuthInfo=socket={self._socket}\n"
            f"LogFile={folder}/log/slurmdbd.log\nPidFile={run}/slurmdbd.pid\nDebugLevel=info\n"
            "StorageType=accounting_storage/mysql\nStorageLoc=slurm_acct_db\nStorageHost=localhost\nStorageUser=root\n"
        )
        configuration.chmod(0o600)
        self._daemon("slurmdbd", "slurmdbd", environment={"MYSQL_UNIX_PORT": f"{run}/mariadb.sock"})
        answers = lambda: self.run("sacctmgr", "-n", "show", "cluster").returncode == 0  # noqa: E731
        self._until(answers, "slurmdbd", seconds=30)
        for words in (
            ("cluster", "lab"),
            ("account", "lab", "cluster=lab"),
            ("user", "root", "account=lab", "defaultaccount=lab", "cluster=lab"),
        ):
            self.run("sacctmgr", "-i", "-Q", "add", *words)

    def _daemon(self, name: str, program: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            subprocess.run(
                [_program(program), *arguments],
                env={**os.environ, **self.env, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                cwd=self.folder,
                timeout=30,
            )
        pid = self.folder / "run" / f"{name}.pid"
        self._until(lambda: pid.exists() and pid.read_text().strip() != "", f"the process id of {name}", seconds=10)
        self._daemons[name] = [int(pid.read_text())]

    def _alive(self, name: str) -> bool:
        return any(psutil.pid_exists(pid) for pid in self._daemons.get(name, []))

    def _end(self, name: str, *, number: int = signal.SIGTERM) -> None:
        for pid in self._daemons.pop(name, []):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                children = process.children(recursive=True) if name == "slurmctld" else []
                process.send_signal(number)
                if psutil.wait_procs([process], timeout=15)[1]:
                    process.kill()
                for child in psutil.wait_procs(children, timeout=3)[1]:
                    child.kill()
        (self.folder / "run" / f"{name}.pid").unlink(missing_ok=True)

    def _strays(self) -> list[psutil.Process]:
        """Job processes of this cluster that outlived their step."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()
                ours = environment.get("SLURM_CONF") == self.env["SLURM_CONF"]
                if ours and "SLURM_JOB_ID" in environment and process.pid != os.getpid():
                    found.append(process)
        return found

    def _idle(self) -> int:
        return self.run("sinfo", "-h", "-p", "7d", "-N", "-o", "%t").stdout.split().count("idle")

    def _until(self, done: Callable[[], bool], what: str, *, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                log = self.folder / "log" / "slurmctld.log"
                tail = log.read_text()[-2000:] if log.exists() else ""
                raise RuntimeError(f"waited {seconds} s for {what}\n{tail}")
            time.sleep(0.05)


def free_ports(count: int) -> int:
    """The second of `count` ports in a row that nobody listens on: two clusters may run at the same time."""
    for first in range(17000 + 20 * (os.getpid() % 400), 32000, 20):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return first + 1
    raise RuntimeError("no free ports")


def missing_programs(*, accounting: bool = False) -> list[str]:
    """Which of Debian's programs are not here."""
    wanted = [*PACKAGES, *(("slurmdbd", "mariadbd", "mariadb-install-db") if accounting else ())]
    return [name for name in wanted if shutil.which(name, path=_SEARCH) is None]


_SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _program(name: str) -> str:
    found = shutil.which(name, path=_SEARCH)
    if found is None:
        raise RuntimeError(f"{name} is missing: apt-get install slurmctld slurmd slurm-client munge")
    return found
