"""Provokes every error with the line that the guide to testing shows for it, and runs the guide's commands."""

import asyncio
import gc
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from agent_vault_client import VaultError

from app.core.errors import CATALOGUE
from tests.support.processes import Serve, command, exit_code, free_ports, serving
from tests.support.reader import Reader, blocks_of
from tests.support.warm import COMMAND_LINE, programs

#: Ignores the warnings about connections that the guide's lines leave open.
_LEFT_OPEN = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), _LEFT_OPEN]

_GUIDE = Path(__file__).resolve().parents[2] / "app/docs/guides/testing.md"
_TEXT = _GUIDE.read_text(encoding="utf-8")
[_TOMORROW, _DEFINITIONS] = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.+) \|$", re.MULTILINE)
#: Sections whose lines need another service than the first.
_OTHERS = ("After a restore, without a key and without SOL", "Without the chain")


def _lines(*sections: str) -> dict[str, str]:
    """Return the lines of these sections by error code. Without a section, return the lines of all but `_OTHERS`."""
    found: dict[str, str] = {}
    for part in _TEXT.split("\n### ")[1:]:
        title = part.partition("\n")[0]
        if title in sections or (not sections and title not in _OTHERS):
            found |= {codes.strip("`"): line for codes, line in _ROW.findall(part) if line.startswith("`")}
    return {code: line.strip("`") for code, line in found.items()}


class _Developer:
    """Someone with the guide's definitions, who runs its lines in a thread."""

    def __init__(self, folder: Path, url: str, key: str, patch: pytest.MonkeyPatch) -> None:
        patch.chdir(folder)
        values = {"URL": url, "KEY": key, "DATA": str(folder / "data"), "PATH": f"{programs()}:{os.environ['PATH']}"}
        for name, value in values.items():
            patch.setenv(name, value)
        self.names: dict[str, Any] = {}

    async def defines(self, **names: str) -> None:
        """Run the guide's definitions."""
        await asyncio.to_thread(exec, _DEFINITIONS, self.names)
        self.names |= names

    async def provokes(self, lines: dict[str, str]) -> dict[str, set[str]]:
        """Run the lines in order. For each line without its error, return the codes that the line got instead."""
        got = await asyncio.to_thread(lambda: {code: self._run(line) for code, line in lines.items()})
        return {code: codes for code, codes in got.items() if code not in codes}

    def _run(self, line: str) -> set[str]:
        *before, last = line.split("; ")
        try:
            for statement in before:
                exec(statement, self.names)
            answers = eval(last, self.names)
        except VaultError as error:
            return {error.code or str(error)}
        finally:
            if (lock := self.names.pop("lock", None)) is not None:
                lock.close()
        every = answers if isinstance(answers, list) else [answers]
        return {one.json()["error"]["code"] for one in every if isinstance(one, httpx.Response) and one.is_error}


@pytest.fixture(autouse=True)
def _left_open() -> Iterator[None]:
    """Collect the connections that the lines leave open, so that no later test is warned of them."""
    yield
    gc.collect()


@pytest_asyncio.fixture(loop_scope="module", name="serve")
async def _serve(tmp_path: Path) -> AsyncIterator[Serve]:
    settings = {"KEEPER": "false", "REQUEST_TIMEOUT": "1", "IDEMPOTENCY_WAIT": "0"}
    environment = {f"AGENT_VAULT_{name}": value for name, value in settings.items()}
    async with serving(tmp_path / "data", COMMAND_LINE, **environment) as serve:
        yield serve


def _key(folder: Path) -> str:
    return (folder / "data/admin-api-key").read_text().strip()


async def test_page_has_a_line_or_a_reason_for_every_error() -> None:
    named = [code for codes, _ in _ROW.findall(_TEXT) for code in re.findall(r"\w+", codes)]

    assert sorted(named) == sorted(CATALOGUE)


async def test_every_line_provokes_its_error(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _lines()
    assert len(lines) > 60

    developer = _Developer(tmp_path, serve.url, _key(tmp_path), monkeypatch)
    await developer.defines()

    assert await developer.provokes(lines) == {}


def _reader(folder: Path, ports: dict[str, str], serve: Serve | None = None) -> Reader:
    values = {"PATH": f"{programs()}:{os.environ['PATH']}", "AGENT_VAULT_DATA_DIR": str(folder / "data")}
    if serve is not None:
        values["AGENT_VAULT_URL"] = serve.url
    return Reader(folder, blocks_of(_GUIDE), ports, **values)


async def test_clock_is_advanced_and_reset_as_shown(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = _reader(tmp_path, {"8402": "8402"}, serve)
    developer = _Developer(tmp_path, serve.url, _key(tmp_path), monkeypatch)
    await developer.defines()

    assert "90,000 seconds ahead" in await reader.types("clock advance")
    await asyncio.to_thread(exec, _TOMORROW, developer.names)
    assert capsys.readouterr().out == "confirmed\n"
    serve.process.send_signal(signal.SIGTERM)
    assert await exit_code(serve.process) == 0
    assert "before the first advance" in await reader.types("clock reset")


async def test_restored_service_refuses_as_shown(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wallets = (await serve.client.get("/v1/wallets")).json()["data"]
    funded = next(one["wallet_id"] for one in wallets if one["usdc_balance"] != "0.00")
    port, chain = map(str, free_ports())
    async with _reader(tmp_path, {"8502": port, "8999": chain}).keeps_running("restored", "8502"):
        developer = _Developer(tmp_path, f"http://127.0.0.1:{port}", _key(tmp_path), monkeypatch)
        await developer.defines(one=funded)

        assert await developer.provokes(_lines(_OTHERS[0])) == {}


async def test_service_without_its_chain_refuses_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, chain = map(str, free_ports())
    reader = _reader(tmp_path, {"8602": port, "9100": chain})
    url, rpc = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{chain}"
    async with AsyncExitStack() as stack:
        async with reader.keeps_running("agent-vault localnet", "9100"):
            said = await command("orgs", "create", "tests", "--data-dir", str(tmp_path / "remote"), "--rpc-url", rpc)
            await stack.enter_async_context(reader.keeps_running("remote", "8602"))
            developer = _Developer(tmp_path, url, said.split()[-1], monkeypatch)
            await developer.defines()

        assert await developer.provokes(_lines(_OTHERS[1])) == {}
