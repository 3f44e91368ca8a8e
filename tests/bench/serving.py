"""Runs `agent-vault serve` in a separate process, and measures what it costs."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import free_ports

_ROOT = Path(__file__).resolve().parent.parent.parent
_SERVE = (sys.executable, "-c", "from app.commands.main import main; main()")


@dataclass(frozen=True, slots=True)
class Served:
    """A running `serve`: its API, its chain's JSON-RPC and WebSocket, its data folder, its admin key, its process."""

    api: str
    rpc: str
    ws: str
    data: Path
    key: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the processor time used by all threads so far."""
        return cpu_seconds(self.pid)

    def resident_megabytes(self) -> float:
        """Return the resident memory in units of a million bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise RuntimeError("the process has ended")


def cpu_seconds(pid: int) -> float:
    """Return the processor time used by all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(command: tuple[str, ...] = _SERVE, **settings: str) -> Iterator[Served]:
    """Run `serve` with an empty data folder until the context ends, with further environment variables."""
    port, rpc_port = free_ports()
    with tempfile.TemporaryDirectory() as folder:
        options = ["serve", "--data-dir", folder, "--port", str(port), "--localnet-port", str(rpc_port)]
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "AGENT_VAULT_RATE_LIMIT": "0",
            "AGENT_VAULT_LIVE_STREAMS": "1000",
            **settings,
        }
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            if not any(line.startswith("curl ") for line in process.stdout):
                raise RuntimeError("serve ended before it listened")
            key = (Path(folder) / "admin-api-key").read_text().strip()
            api, rpc, ws = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{rpc_port}", f"ws://127.0.0.1:{rpc_port + 1}"
            yield Served(api, rpc, ws, Path(folder), key, process.pid)
        finally:
            process.terminate()
            process.communicate()
