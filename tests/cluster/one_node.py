"""A Slurm cluster of one node, this machine, for the length of a `with` block.

Debian's packages are installed where they are missing, which needs root. The daemons
run on free ports with a munge key of their own; what they write is in one folder, but
for /etc/slurm/slurm.conf: the Slurm plugin clears SLURM_CONF before it calls srun, so
the file has to be where srun looks. A machine that has one already is left alone.
"""

import contextlib
import ctypes
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")
CONF = Path("/etc/slurm/slurm.conf")
MARK = "# Made by dpfedbench's tests/cluster; removed when they end.\n"
CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
MinJobAge=300
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return why no cluster can be started here, or None where one can."""
    if platform.system() != "Linux" or not Path("/etc/debian_version").exists():
        return "this is not Debian, whose packages of Slurm and munge are used"
    if os.geteuid() != 0:
        return "not root, so Slurm's daemons cannot be installed and started"
    if CONF.exists() and not CONF.read_text(encoding="utf-8").startswith(MARK):
        return f"{CONF} is there: this machine belongs to a cluster"
    return None


def install() -> str | None:
    """Install Slurm and munge where they are missing; return why that failed, or None."""
    if all(map(shutil.which, PROGRAMS)):
        return None
    # Packages must not start daemons of the system's: ours are private.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends slurm-wlm munge",
    ):
        words = command.split()
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        if done.returncode:
            return f"`{command}` failed: {(done.stderr or done.stdout)[-500:]}"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    return f"slurm-wlm did not bring {', '.join(missing)}" if missing else None


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for handle in sockets:
            handle.bind(("127.0.0.1", 0))
        return [handle.getsockname()[1] for handle in sockets]


def end_with_parent() -> None:
    """Make the calling child end when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a child, and kill it after ten seconds."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_jobs() -> None:
    """Cancel every job, and wait until the node has none."""
    for options in (["--full", "--signal=KILL"], []):
        command = ["scancel", *options, "--user=root"]
        subprocess.run(command, capture_output=True, check=False)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done = subprocess.run(["squeue", "-h"], capture_output=True, check=False)
        if not done.stdout.strip():
            return
        time.sleep(0.5)


def node_is_idle() -> bool:
    command = ["sinfo", "-h", "-o", "%T"]
    return b"idle" in subprocess.run(command, capture_output=True, check=False).stdout


@contextlib.contextmanager
def one_node(folder: Path) -> Iterator[None]:
    """Run a cluster whose daemons keep their files in `folder`.

    Raises:
        RuntimeError: a daemon did not come up; the end of its log is in the message.
    """
    for name in ("spool", "state"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o755)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    controller, node = free_ports(2)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    text = CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0],
        controller=controller,
        node=node,
        folder=folder,
        cpus=os.cpu_count(),
        memory=memory,
    )
    CONF.parent.mkdir(exist_ok=True)
    CONF.write_text(MARK + text, encoding="utf-8")
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munged.append(f"--socket={folder}/munge.socket")
    for name in ("log", "pid", "seed"):
        munged.append(f"--{name}-file={folder}/munged.{name}")
    with contextlib.ExitStack() as stack:
        stack.callback(CONF.unlink, missing_ok=True)

        def start(name: str, command: list[str]) -> None:
            log = stack.enter_context(open(folder / f"{name}.out", "wb"))
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            stack.callback(stop, process)

        def wait(name: str, is_ready: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 60
            while not is_ready():
                if time.monotonic() > deadline:
                    log = (folder / f"{name}.out").read_text(errors="replace")
                    raise RuntimeError(f"{name} did not come up: {log[-500:]}")
                time.sleep(0.2)

        start("munged", munged)
        wait("munged", (folder / "munge.socket").exists)
        start("slurmctld", ["slurmctld", "-D"])
        start("slurmd", ["slurmd", "-D"])
        wait("slurmd", node_is_idle)
        # Last in, first out: jobs end before the daemons that hold them.
        stack.callback(end_jobs)
        yield
