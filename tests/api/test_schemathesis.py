"""Schemathesis checks the service over HTTP against its OpenAPI document, with valid and invalid requests."""

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from app.access.keyring import KeyRing
from app.core.outbound import Outbound
from tests.support.http import served
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HOOKS = "tests.api.schemathesis_hooks"
_ROOT = Path(__file__).parents[2]
_PATIENCE = 3600.0

#: `positive_data_acceptance` is replaced by a check of our own: a policy or an empty wallet may refuse a well-formed
#: payment. `use_after_free` does not apply to wallets: an archived one is still shown. The only required header is
#: Authorization, which every case has and `ignored_auth` leaves out.
_CONFIG = """
[generation]
database = "none"

[checks]
positive_data_acceptance.enabled = false
use_after_free.enabled = false
missing_required_header.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 422]

[phases.examples]
enabled = true

[phases.coverage]
enabled = {full}

[phases.fuzzing]
generation.max-examples = {fuzzing}

[phases.stateful]
generation.max-examples = {stateful}
"""


def _config(*, full: bool) -> str:
    return _CONFIG.format(full=str(full).lower(), fuzzing=8 if full else 2, stateful=60 if full else 16)


@pytest.fixture(name="_offline")
def _fixture_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep generated webhooks and domains from reaching real hosts."""

    async def nowhere(*_: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr(Outbound, "_address", nowhere)


async def _populate(world: ServiceWorld) -> None:
    """Create one of everything, with funds: schemathesis reads and changes what it finds in lists."""
    policy = await world.policy(maxPerTx="20", requireCoSign="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    await world.session(wallet)
    assert (await world.pay(wallet, to, "1")).status_code == 200
    # Requests an approval.
    assert (await world.pay(wallet, to, "6")).status_code == 402
    a2a = {"fromWallet": wallet["wallet_id"], "toWallet": to, "currency": "USDC", "taskDescription": "Work"}
    for amount in ("1", "2"):
        await world.ok("POST", "/v1/payments/a2a", {**a2a, "amount": amount})
    await world.ok("PUT", f"/v1/recipients/{to}", {"category": "marketplace"})
    await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/agent-vault", "events": ["*"]})
    await world.ok("POST", "/v1/keys", {"role": "viewer"})


@pytest.mark.usefixtures("_offline")
async def test_every_answer_is_as_documented(
    own_world: ServiceWorld, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """For all operations and chains of them: no 5xx, every answer fits its schema, every error has the envelope."""
    full: bool = request.config.getoption("--full")
    # A random seed finds more over time; the short run must give the same result every day.
    seed = random.SystemRandom().randrange(2**31) if full else 1
    config, report = tmp_path / "schemathesis.toml", tmp_path / "report.json"
    config.write_text(_config(full=full))
    key = own_world.keys["admin"]
    principal = await own_world.service.part(KeyRing).recognise(key, None)
    assert principal is not None

    await _populate(own_world)
    async with served(own_world) as base:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(config)),
            *("run", f"{base}/openapi.json", "--header", f"Authorization: Bearer {key}", "--seed", str(seed)),
            *("--continue-on-failure", "--report", "json", "--report-json-path", str(report)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(_ROOT), "SCHEMATHESIS_HOOKS": _HOOKS, "OWN_KEY": principal.key_id},
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), _PATIENCE)
        finally:
            if process.returncode is None:
                process.kill()

    assert process.returncode == 0, out.decode()
    found: dict[str, Any] = json.loads(report.read_text())
    cases = found["test_cases"]["generated"]
    print(f"schemathesis: {cases} cases, seed {seed}")
    assert found["complete"]
    assert found["operations"]["tested"] == found["operations"]["total"]
    assert found["test_cases"]["errored"] == 0
    assert cases >= (2_000 if full else 300)
