"""The test clock: tomorrow on the embedded chain, and the way back."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from agent_vault_client import verify_webhook
from click.testing import CliRunner
from solders.keypair import Keypair

from app.commands.main import main
from app.core.timestamps import parse_iso_ms
from app.test_clock.service import MOST_AHEAD
from tests.support.http import PATIENCE
from tests.support.processes import WITH_LOG, Serve, command, exit_code, serving
from tests.support.service_world import ServiceWorld, error_of
from tests.support.warm import COMMAND_LINE
from tests.support.webhooks import Receiver

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DAY = 24 * 3600
_PATH = "/v1/test/clock"


async def _ok(serve: Serve, method: str, path: str, body: Any = None, **headers: str) -> Any:
    answered = await serve.client.request(method, path, json=body, headers=headers)
    assert answered.status_code == 200, answered.text
    return answered.json()


async def _refused(serve: Serve, status: int, code: str, body: Any, path: str = _PATH, **headers: str) -> Any:
    return error_of(await serve.client.post(path, json=body, headers=headers), status, code)


async def _wallet(serve: Serve, **rules: Any) -> str:
    policy = await _ok(serve, "POST", "/v1/policies", {"name": "Tried tomorrow", **rules})
    new = {"agentId": str(Keypair().pubkey()), "label": "Tried tomorrow", "policyId": policy["policy_id"]}
    made = str((await _ok(serve, "POST", "/v1/wallets", new))["wallet_id"])
    await _ok(serve, "POST", f"/v1/wallets/{made}/fund", {"amount": "100", "currency": "USDC"})
    return made


def _payee() -> str:
    return str(Keypair().pubkey())


def _payment(wallet: str, amount: str) -> dict[str, str]:
    return {"walletId": wallet, "to": _payee(), "amount": amount, "currency": "USDC"}


async def _advance(serve: Serve, data: Path, duration: str) -> str:
    return await command("clock", "advance", duration, "--data-dir", str(data), "--url", serve.url)


async def _actions(serve: Serve) -> list[str]:
    return [one["action"] for one in (await _ok(serve, "GET", "/v1/audit-log"))["data"]]


async def _transactions(serve: Serve) -> list[str]:
    return [one["tx_id"] for one in (await _ok(serve, "GET", "/v1/transactions"))["data"]]


async def _stop(serve: Serve) -> None:
    serve.process.send_signal(signal.SIGTERM)
    assert await exit_code(serve.process) == 0


def _line(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in {1, 2}, done.output
    return done.output.splitlines()[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="data")
async def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clock") / "data"


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="serve")
async def _serve(data: Path) -> AsyncIterator[Serve]:
    async with serving(data, COMMAND_LINE) as serve:
        yield serve


@pytest.mark.proves("POST /v1/test/clock", "AdvanceClock(seconds)", "ClockState(chain_time, ahead_seconds)")
async def test_days_limit_is_free_again_after_25_hours(serve: Serve, data: Path) -> None:
    wallet = await _wallet(serve, maxPerDay="8")
    await _ok(serve, "POST", "/v1/payments", _payment(wallet, "8"))
    await _refused(serve, 402, "policy_violation", _payment(wallet, "8"), "/v1/payments")

    moved = await _ok(serve, "POST", _PATH, {"seconds": 90_000})

    assert f"{moved['ahead_seconds'] + 60:,} seconds ahead" in await _advance(serve, data, "1m")
    assert parse_iso_ms(moved["chain_time"]) / 1000 - time.time() > _DAY
    paid = await _ok(serve, "POST", "/v1/payments", _payment(wallet, "8"))
    assert paid["status"] == "confirmed"
    assert parse_iso_ms(paid["timestamp"]) / 1000 - time.time() > _DAY


async def test_advance_is_repeated_under_its_key_without_another(serve: Serve) -> None:
    key = {"Idempotency-Key": "one advance"}

    first = await _ok(serve, "POST", _PATH, {"seconds": 2 * _DAY}, **key)

    assert await _ok(serve, "POST", _PATH, {"seconds": 2 * _DAY}, **key) == first


async def test_session_key_and_stored_response_end_with_the_clock(serve: Serve) -> None:
    wallet = await _wallet(serve)
    granted = await _ok(serve, "POST", f"/v1/wallets/{wallet}/rotate-token", {"ttlSeconds": 3600})
    now = parse_iso_ms(granted["expires_at"]) // 1000
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    new = {"role": "agent", "walletId": wallet, "name": "An hour", "expiresAt": ends}
    agent = (await _ok(serve, "POST", "/v1/keys", new))["key"]
    payment, replayed = _payment(wallet, "1"), {"Idempotency-Key": "kept for 24 hours"}
    first = await _ok(serve, "POST", "/v1/payments", payment, **replayed)
    assert await _ok(serve, "POST", "/v1/payments", payment, **replayed) == first

    await _ok(serve, "POST", _PATH, {"seconds": _DAY})

    as_agent = {"Authorization": f"Bearer {agent}"}
    await _refused(serve, 401, "authentication_failed", payment, "/v1/payments", **as_agent)
    other = (await _ok(serve, "POST", "/v1/keys", {"role": "agent", "walletId": wallet, "name": "Endless"}))["key"]
    headers = {"Authorization": f"Bearer {other}", "Session-Token": granted["session_token"]}
    await _refused(serve, 401, "session_token_expired", payment, "/v1/payments", **headers)
    assert (await _ok(serve, "POST", "/v1/payments", payment, **replayed))["tx_id"] != first["tx_id"]


async def test_escrow_is_refunded_when_the_clock_passes_its_deadline(serve: Serve) -> None:
    body: dict[str, Any] = {
        "fromWallet": await _wallet(serve),
        "toWallet": await _wallet(serve),
        "amount": "1",
        "currency": "USDC",
    }
    body |= {"taskDescription": "A task", "timeoutSeconds": 3600}
    made = await _ok(serve, "POST", "/v1/payments/a2a", body)
    path = f"/v1/payments/a2a/{made['escrow_id']}"

    await _ok(serve, "POST", _PATH, {"seconds": 2 * 3600})

    async with asyncio.timeout(PATIENCE):
        while (shown := await _ok(serve, "GET", path))["status"] != "refunded":  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.2)
    assert shown["escrow_id"] == made["escrow_id"]


async def test_receivers_of_webhooks_accept_events_after_an_advance(serve: Serve) -> None:
    async with Receiver() as receiver:
        hook = await _ok(serve, "POST", "/v1/webhooks", {"url": receiver.url, "events": ["*"]})
        await _ok(serve, "POST", _PATH, {"seconds": _DAY})

        await _ok(serve, "POST", f"/v1/webhooks/{hook['webhook_id']}/test", {})

        await receiver.wait_for(1)
        [sent, *_] = receiver.received
        assert verify_webhook(sent.body, sent.headers, hook["signing_secret"])["event"] == "ping"


async def test_clock_moves_only_forward_and_at_most_400_days(serve: Serve, data: Path) -> None:
    await _refused(serve, 400, "invalid_request", {"seconds": -1})
    await _refused(serve, 400, "invalid_request", {"seconds": MOST_AHEAD + 1})
    await _refused(serve, 422, "test_clock_refused", {"seconds": MOST_AHEAD})
    options = ("--data-dir", str(data), "--url", serve.url)
    assert "at most" in await asyncio.to_thread(_line, "clock", "advance", "400d", *options)
    assert "is not a duration" in await asyncio.to_thread(_line, "clock", "advance", "tomorrow", *options)
    assert "is not a duration" in await asyncio.to_thread(_line, "clock", "advance", "--", "-1h")


async def test_only_an_admins_key_moves_the_clock(serve: Serve) -> None:
    operator = (await _ok(serve, "POST", "/v1/keys", {"role": "operator", "name": "Operator"}))["key"]

    await _refused(serve, 403, "insufficient_permissions", {"seconds": 1}, Authorization=f"Bearer {operator}")


async def test_running_service_is_not_reset(serve: Serve, data: Path) -> None:
    await _ok(serve, "POST", _PATH, {"seconds": 1})

    assert "stop it first" in await asyncio.to_thread(_line, "clock", "reset", "--data-dir", str(data))


@pytest.mark.proves("action clock.advance", "action clock.reset")
async def test_clock_stays_ahead_after_a_restart_and_reset_takes_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    log = str(tmp_path / "log")
    async with serving(data, WITH_LOG, log) as serve:
        wallet = await _wallet(serve)
        first = await _ok(serve, "POST", "/v1/payments", _payment(wallet, "1"))
        before = await _transactions(serve)
        await _ok(serve, "POST", _PATH, {"seconds": 30 * _DAY})
        assert "clock.advance" in await _actions(serve)
        await _stop(serve)
    async with serving(data, WITH_LOG, log) as serve:
        later = await _ok(serve, "POST", "/v1/payments", _payment(wallet, "2"))
        assert parse_iso_ms(later["timestamp"]) - parse_iso_ms(first["timestamp"]) > 29 * _DAY * 1000
        await _stop(serve)

    monkeypatch.setenv("AGENT_VAULT_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    assert "clock reset` first" in await asyncio.to_thread(_line, "db", "copy", "--data-dir", str(data))
    monkeypatch.undo()

    assert "before the first advance" in await command("clock", "reset", "--data-dir", str(data))

    async with serving(data, WITH_LOG, log) as serve:
        assert "clock.reset" in await _actions(serve)
        assert await _transactions(serve) == before
        paid = await _ok(serve, "POST", "/v1/payments", _payment(wallet, "3"))
        assert abs(parse_iso_ms(paid["timestamp"]) / 1000 - time.time()) < _DAY
        await _stop(serve)
    assert "was never advanced" in await asyncio.to_thread(_line, "clock", "reset", "--data-dir", str(data))


@pytest.mark.proves("error test_clock_refused")
async def test_clock_of_a_chain_with_several_organisations_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data, COMMAND_LINE) as serve:
        await command("orgs", "create", "second", "--data-dir", str(data))

        told = await _refused(serve, 422, "test_clock_refused", {"seconds": 1})

        assert "several organisations" in told["message"]


async def test_clock_of_another_chain_is_refused(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        refused: httpx.Response = await world.call("POST", _PATH, {"seconds": 1})

        error_of(refused, 422, "test_clock_refused")
