"""The command line without its startup of one or two seconds of processor time. Calls fork from one process."""

import gc
import json
import os
import secrets
import socket
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from app.commands import main
from tests.support.processes import running

_SERVER = "from tests.support.warm import serve; serve()"
#: The called program. It passes its arguments, folder, environment and terminal on, and ends with the fork's exit code.
_CALL = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect("\\0{name}")
    given = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
    socket.send_fds(line, [given.encode()], [0, 1, 2])
    line.shutdown(socket.SHUT_WR)
    sys.exit(int(line.recv(4) or 1))
"""


@asynccontextmanager
async def warmed(folder: Path) -> AsyncIterator[str]:
    """Install the command line into a folder like `installed`, for one call at a time. Yields the folder for `PATH`."""
    name = f"agent-vault-{secrets.token_hex(16)}"
    command = folder / "bin/agent-vault"
    command.parent.mkdir()
    command.write_text(_CALL.format(python=sys.executable, name=name), encoding="utf-8")
    command.chmod(0o755)
    async with running(_SERVER, name, until=b"ready"):
        yield str(command.parent)


def serve() -> None:
    """Import every command, and fork for each call. The process's only argument is the socket's abstract name."""
    for place in main._COMMANDS.values():
        import_module(f"app.commands.{place.partition(':')[0]}")
    gc.freeze()  # otherwise each fork copies all objects when it searches for garbage
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"\0{sys.argv[1]}")
        door.listen()
        print("ready", flush=True)
        while True:
            line, _ = door.accept()
            with line:
                if (child := os.fork()) == 0:
                    door.close()
                    _run(line)
                _, status = os.waitpid(child, 0)
                line.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())


def _run(line: socket.socket) -> NoReturn:
    """Act as the called process, but skip the slow exit of a process that has imported everything."""
    given, terminal, _, _ = socket.recv_fds(line, 1 << 16, 3)
    while more := line.recv(1 << 16):
        given += more
    line.close()
    arguments, folder, environment = json.loads(given)
    for number, own in enumerate(terminal):
        os.dup2(own, number)
        os.close(own)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = 1
    try:
        main.main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - as Python prints what ends a process
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
