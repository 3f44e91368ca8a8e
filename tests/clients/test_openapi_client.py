"""The client that openapi-python-client makes of the served document does an agent's whole job."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.support.http import served
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_JOB = Path(__file__).parent / "openapi/main_job.py"
_PATIENCE = 120.0


async def _run(*command: str, **environment: str) -> tuple[str, str]:
    """Run a program to its end; return what it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), _PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    return out.decode(), err.decode()


async def test_served_document_is_openapi_3_1(world: ServiceWorld) -> None:
    document = (await world.client.get("/openapi.json")).json()

    assert document["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(document).validate()


async def test_generated_client_pays_is_refused_and_freezes(world: ServiceWorld, tmp_path: Path) -> None:
    config, package = tmp_path / "config.yml", tmp_path / "agent_vault_client"
    # Its own formatting of the code would only take time.
    config.write_text("post_hooks: []\n")
    payee = await world.payee()

    async with served(world) as base:
        # When the client is generated from what the service answers, and used for the main job
        out, err = await _run(
            *("-m", "openapi_python_client", "generate", "--url", f"{base}/openapi.json", "--meta", "none"),
            *("--config", str(config), "--output-path", str(package), "--fail-on-warning"),
        )
        assert "warning" not in f"{out}{err}".lower()
        environment = {"BASE_URL": base, "API_KEY": world.keys["admin"], "PAYEE": payee, "PYTHONPATH": str(tmp_path)}
        said: dict[str, Any] = json.loads((await _run(str(_JOB), **environment))[0])

    # Then what it says is what happened
    wallet, paid = said["wallet"], said["paid"]
    assert said["limits"] == ["4.00", "5.00"]
    assert said["outdated"] == "version_conflict"
    assert said["funded"] == "50.00"
    assert said["confirmed"]
    assert paid["amount"] == "4.50"
    assert 0 <= said["age"] < _PATIENCE
    assert await world.balance(payee) == 4_500_000
    assert await world.balance(wallet["chain_address"]) == 45_500_000
    assert said["replayed"] == [None, "true"]
    assert said["same"]
    assert said["request_id"].startswith("req_")
    violation = {"rule": "max_per_tx", "limit": "5.00", "attempted": "6.00"}
    assert said["refused"] == ["policy_violation", violation, wallet["wallet_id"], wallet["policy"]["policy_id"]]
    assert said["seen"] == [paid["tx_id"], True, wallet["policy"]["policy_id"]]
    assert said["listed"] == [
        ["payment", "blocked", "6.00"],
        ["payment", "confirmed", "4.50"],
        ["funding", "confirmed", "50.00"],
    ]
    assert said["frozen"]
    assert said["stopped"] == ["wallet_frozen", f"{base}/docs/errors/wallet_frozen"]
