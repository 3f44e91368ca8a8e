"""Every sample of the reference runs: it sends the operation's request, and the service accepts its form."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.docs.samples import snake_case
from app.server.application import create_app
from app.server.data_folder import LOCALHOST
from tests.support.http import serving
from tests.support.needs import skip_or_fail
from tests.support.node import compiler, generated_clients
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CLIENTS = Path(__file__).resolve().parents[2] / "clients"
_FENCE = r"^```{}\n(.*?)^```$"
#: Statuses of well-formed requests. The service refuses many samples, because their ids name no objects.
_ACCEPTED = {200, 402, 404, 409, 422}
_PATIENCE = 300.0
#: Runs the samples one after the other. A refusal raises the client's error, which does not make the sample wrong.
_PYTHON = """import runpy, sys
from agent_vault_client import VaultError
for file in sys.argv[1:]:
    try:
        runpy.run_path(file)
    except VaultError:
        pass
"""
_NODE = """import { VaultError } from "agent-vault-client";
for (const file of process.argv.slice(2)) {
  try {
    await import(file);
  } catch (error) {
    if (!(error instanceof VaultError)) throw error;
  }
}
"""

Json = dict[str, Any]
#: Method, path, body with names in snake_case, True for an idempotency key, True for a session token.
Sent = tuple[str, str, Any, bool, bool]


class _Recorder:
    """Records the requests to an application with the statuses and codes of the responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.seen: list[tuple[Sent, int, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parts, answers, status = [b""], [b""], 0

        async def received() -> Message:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def answered(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            answers.append(message.get("body", b""))
            await send(message)

        await self._app(scope, received, answered)
        names = {name for name, _ in scope["headers"]}
        body = _snake(json.loads(b"".join(parts) or b"null"))
        sent = (scope["method"], scope["path"], body, b"idempotency-key" in names, b"session-token" in names)
        self.seen.append((sent, status, json.loads(b"".join(answers)).get("error", {}).get("code", "")))


def _snake(value: Any) -> Any:
    if isinstance(value, dict):
        return {snake_case(name).rstrip("_"): _snake(one) for name, one in value.items()} or None
    return [_snake(one) for one in value] if isinstance(value, list) else value


def _expected(path: str, method: str, operation: Json) -> Sent:
    taken = {(one["in"], one["name"]): one for one in operation["parameters"]}
    given = {name: one["schema"]["examples"][0] for (place, name), one in taken.items() if place == "path"}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    keyed, session = ("header", "Idempotency-Key") in taken, ("header", "Session-Token") in taken
    return method.upper(), path.format_map(given), _snake(body), keyed, session


async def _run(folder: Path, *command: str | Path, **environment: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), _PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()[-3000:]


async def _run_all(language: str, samples: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Run the samples in their order, with the repository's clients."""
    if language == "sh":
        if shutil.which("curl") is None or shutil.which("openssl") is None:
            skip_or_fail("curl or openssl is not installed")
        await _run(folder, "bash", "-eu", "-c", "\n".join(samples), **environment)
        return
    files = [folder / f"sample{number}.{'py' if language == 'python' else 'mts'}" for number in range(len(samples))]
    for file, sample in zip(files, samples, strict=True):
        file.write_text(sample)
    if language == "python":
        await _run(folder, sys.executable, "-c", _PYTHON, *files, PYTHONPATH=str(_CLIENTS / "python"), **environment)
        return
    (modules := folder / "node_modules").mkdir()
    (modules / "@types").symlink_to(generated_clients() / "@types")
    (modules / "undici-types").symlink_to(generated_clients() / "undici-types")
    client = modules / "agent-vault-client"
    shutil.copytree(_CLIENTS / "typescript", client, ignore=shutil.ignore_patterns("node_modules", "dist"))
    options: list[str | Path] = [
        "--module",
        "nodenext",
        "--target",
        "es2023",
        "--types",
        "node",
        "--strict",
        "--outDir",
        folder / "built",
    ]
    await _run(folder, compiler(), "-p", client)
    await _run(folder, compiler(), *options, *files)
    (driver := folder / "built/driver.mjs").write_text(_NODE)
    await _run(folder, "node", driver, *(folder / "built" / f"{file.stem}.mjs" for file in files), **environment)


@pytest.mark.parametrize("language", ["sh", "python", "ts"])
async def test_samples_send_the_request_of_their_operation(
    own_world: ServiceWorld, tmp_path: Path, language: str
) -> None:
    world = own_world
    document = (await world.client.get("/openapi.json")).json()
    found = [(path, *one) for path, methods in document["paths"].items() for one in methods.items()]
    samples = []
    for _, _, operation in found:
        page = (await world.client.get(f"/docs/api/{operation['operationId']}.md")).text
        samples += re.findall(_FENCE.format(language), page, re.DOTALL | re.MULTILINE)
    wallet = (await world.wallet())["wallet_id"]
    token = (await world.ok("POST", f"/v1/wallets/{wallet}/rotate-token", {}))["session_token"]
    with socket.create_server((LOCALHOST, 0)) as bound:
        base = f"http://{LOCALHOST}:{bound.getsockname()[1]}"
        recorder = _Recorder(create_app(world.settings.model_copy(update={"public_url": base}), world.service))
        async with serving(recorder, bound, 30):
            environment = {"URL": base, "KEY": world.keys["admin"], "TOKEN": token}
            await _run_all(language, samples, tmp_path, environment)

    # For a list of several pages, the clients repeat the request.
    sent = [one for one, _ in groupby(one for one, _, _ in recorder.seen)]
    assert sent == [_expected(*one) for one in found]
    refused = [one for one in recorder.seen if one[1] not in _ACCEPTED and one[2] != "invalid_signature"]
    assert refused == []


async def test_examples_of_answers_have_the_described_fields(world: ServiceWorld) -> None:
    document = (await world.client.get("/openapi.json")).json()

    for methods in document["paths"].values():
        for operation in methods.values():
            page = (await world.client.get(f"/docs/api/{operation['operationId']}.md")).text
            [shown] = re.findall(_FENCE.format("json"), page, re.DOTALL | re.MULTILINE)
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            Draft202012Validator({**schema, "components": document["components"]}).validate(json.loads(shown))
