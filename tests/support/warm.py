"""Python processes that start fast, as forks of a process that has imported all modules.

A start otherwise takes one or two seconds of processor time. Code that changes values which other modules read at their
import, such as the clock, needs a separate interpreter instead.
"""

import asyncio
import atexit
import contextlib
import functools
import gc
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from app.commands import main

_ROOT = Path(__file__).resolve().parents[2]
COMMAND_LINE = "import sys; from app.commands.main import main; main(sys.argv[1:])"
_SERVER = "from tests.support.warm import serve; serve()"
#: A program that replaces an interpreter called with `-c`. It passes code, arguments, folder, environment and terminal
#: on to a fork, and ends like the fork. The fork is killed if the program ends first.
_INTERPRETER = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect("\\0{name}")
    given = json.dumps([sys.argv[2], sys.argv[3:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [len(given).to_bytes(4, "big")], [0, 1, 2])
    line.sendall(given)
    status = int(line.makefile().read().split()[1])
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Fork:
    """A running fork, with the members of asyncio's processes that tests use."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, status: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = asyncio.ensure_future(self._end(status))

    async def _end(self, status: asyncio.StreamReader) -> int:
        self.returncode = int(await status.read())
        return self.returncode

    async def wait(self) -> int:
        """Return the exit code once the process has ended."""
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, None]:
        """Return the rest of the output once the process has ended."""
        out = await self.stdout.read()
        await self.wait()
        return out, None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises ProcessLookupError if the process has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@asynccontextmanager
async def forked(code: str, arguments: tuple[str, ...], env: Mapping[str, str]) -> AsyncIterator[Fork]:
    """Run Python code with its output in a pipe. The process is killed at the end."""
    name, (out, given) = await asyncio.to_thread(_server), os.pipe()
    line, stdout = socket.socket(socket.AF_UNIX), asyncio.StreamReader()
    line.connect(f"\0{name}")
    call = json.dumps([code, arguments, str(Path.cwd()), {**env}]).encode()
    with open(os.devnull, "rb") as null, os.fdopen(given, "wb") as written:  # noqa: ASYNC230, PTH123 - no waiting
        socket.send_fds(line, [len(call).to_bytes(4, "big")], [null.fileno(), written.fileno(), 2])
    line.sendall(call)
    status, writer = await asyncio.open_unix_connection(sock=line)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(out, "rb", 0)
    )
    process = Fork(int(await status.readline()), stdout, status)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
        pipe.close()
        writer.close()


@functools.cache
def programs() -> Path:
    """Return a folder with programs that run forks: `agent-vault`, and `interpreter -c CODE ARGUMENTS…`."""
    folder = Path(tempfile.mkdtemp(prefix="agent-vault-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    interpreter = folder / "interpreter"
    interpreter.write_text(_INTERPRETER.format(python=sys.executable, name=_server()), encoding="utf-8")
    command = folder / "agent-vault"
    command.write_text(f"#!/bin/sh\nexec {interpreter} -c '{COMMAND_LINE}' \"$@\"\n", encoding="utf-8")
    for one in (interpreter, command):
        one.chmod(0o755)
    return folder


_starting = threading.Lock()


def _server() -> str:
    with _starting:
        return _started()


@functools.cache
def _started() -> str:
    """Start the process that makes the forks, and return the abstract name of its socket.

    The process ends together with this one.
    """
    name = f"agent-vault-{secrets.token_hex(16)}"
    process = subprocess.Popen(
        [sys.executable, "-uc", _SERVER, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    @atexit.register
    def _stop() -> None:
        process.kill()
        process.communicate()

    return name


def serve() -> None:
    """Import every command, and fork for each call, until standard input ends."""
    for place in main._COMMANDS.values():
        import_module(f"app.commands.{place.partition(':')[0]}")
    gc.freeze()  # otherwise each fork copies all objects when it searches for garbage
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as awaited:
        door.bind(f"\0{sys.argv[1]}")
        door.listen()
        awaited.register(sys.stdin, selectors.EVENT_READ, sys.exit)
        awaited.register(door, selectors.EVENT_READ, lambda: _fork(door.accept()[0], awaited))
        print("ready", flush=True)
        while True:
            # Handle one event at a time, because its handler may remove the source of another event.
            awaited.select()[0][0].data()


def _fork(line: socket.socket, awaited: selectors.BaseSelector) -> None:
    """Run the call of a connection, report its process id and exit code, and kill it if the connection ends."""
    size, terminal, _, _ = socket.recv_fds(line, 4, 3)
    given = line.recv(int.from_bytes(size), socket.MSG_WAITALL)
    if not given:  # the caller has ended
        for own in (*terminal, line.detach()):
            os.close(own)
        return
    if (child := os.fork()) == 0:
        for one in awaited.get_map().values():
            if isinstance(one.fileobj, socket.socket):
                one.fileobj.close()
            elif isinstance(one.fileobj, int):
                os.close(one.fileobj)
        awaited.close()
        line.close()
        _run(given, terminal)
    for own in terminal:
        os.close(own)
    with contextlib.suppress(OSError):  # a caller that has ended is noticed below
        line.sendall(f"{child}\n".encode())
    handle = os.pidfd_open(child)

    def end() -> None:
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        awaited.unregister(handle)
        os.close(handle)
        with contextlib.suppress(KeyError):
            awaited.unregister(line)
        line.close()

    def kill() -> None:
        awaited.unregister(line)
        os.kill(child, signal.SIGKILL)

    awaited.register(handle, selectors.EVENT_READ, end)
    awaited.register(line, selectors.EVENT_READ, kill)


def _run(given: bytes, terminal: list[int]) -> NoReturn:
    """Act as the called process, but skip the slow exit of a process that has imported everything."""
    code, arguments, folder, environment = json.loads(given)
    for number, own in enumerate(terminal):
        os.dup2(own, number)
        os.close(own)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["-c", *arguments]
    status = 1
    try:
        exec(code, {"__name__": "__main__"})
        status = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as Python prints what ends a process
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status % 256)
