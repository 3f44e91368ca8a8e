"""The log's queue: lines for a reader that does not read wait, and are dropped and counted when they are too many."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from app.core import logs
from tests.support.processes import PATIENCE, exit_code, free_ports, printed
from tests.support.warm import COMMAND_LINE

_ROOT = Path(__file__).resolve().parents[2]
_SMALL = 4096


@pytest.fixture(name="pipe")
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes little before somebody reads it, as from a reader that is stopped."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _SMALL)
    yield reading, writing
    for one in (reading, writing):
        with suppress(OSError):
            os.close(one)


def test_lines_wait_for_a_stopped_reader_and_the_rest_is_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_QUEUED", 5)
    reading, writing = pipe
    lines = logs._Queued(writing)
    # Given more lines than the pipe and the queue take; nobody waits for the reader
    for number in range(50):
        lines.write(f"{number:04} " + "x" * 1_000 + "\n")
    # When it reads on
    numbers: list[int] = []
    dropped = 0
    with open(reading, encoding="utf-8", closefd=False) as file:
        while len(numbers) + dropped < 50:
            line = file.readline()
            if line.startswith("{"):
                told = json.loads(line)
                assert (told["event"], told["level"]) == ("log_lines_dropped", "warning")
                dropped += told["lines"]
            else:
                numbers.append(int(line[:4]))
    # Then it gets what was kept, in order, and the number of the rest
    assert numbers == sorted(numbers)
    assert dropped >= 30
    lines.close()


async def test_service_works_and_ends_while_the_reader_of_its_log_is_stopped(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    _, writing = pipe
    port, rpc_port = free_ports()
    options = ("--data-dir", str(tmp_path), "--port", str(port), "--localnet-port", str(rpc_port))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND_LINE, "--log-level", "debug", "serve", *options),
        stdout=subprocess.PIPE,
        stderr=writing,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"},
    )
    try:
        await printed(process, b"curl ")
        headers = {"Authorization": f"Bearer {(tmp_path / 'admin-api-key').read_text().strip()}"}
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE / 3) as client:
            # Given more lines than the pipe takes
            for _ in range(60):
                assert (await client.get("/v1/organization")).status_code == 200
            # Then a vault is still frozen at once
            [wallet, *_] = (await client.get("/v1/wallets")).json()["data"]
            frozen = await client.patch(f"/v1/wallets/{wallet['wallet_id']}", json={"status": "frozen"})
            assert frozen.json()["status"] == "frozen"
        # And the end of the process does not wait for the reader either
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        await process.stdout.read()
        assert await exit_code(process) == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def test_lines_are_written_before_the_process_ends() -> None:
    code = (
        "import logging, sys; from app.core import logs; logs.configure('warning', sys.stderr)\n"
        "for number in range(500): logging.getLogger('one').warning('line %d', number)\n"
        "sys.stderr.write('fatal\\n'); raise SystemExit(1)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=_ROOT)
    written = ended.stderr.splitlines()
    assert "fatal" in written
    told = [json.loads(one)["event"] for one in written if one != "fatal"]
    assert told == [f"line {number}" for number in range(500)]


def test_process_without_stderr_loses_its_lines_and_works() -> None:
    code = (
        "import logging, sys; from app.core import logs; logs.configure('info', sys.stderr)\n"
        "logging.getLogger('one').warning('a line'); import structlog; structlog.get_logger().info('another')\n"
        "print('works')"
    )
    shell = ["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, code]
    ended = subprocess.run(shell, stdout=subprocess.PIPE, text=True, check=False, cwd=_ROOT)
    assert (ended.returncode, ended.stdout) == (0, "works\n")
