"""The keys of the roles in a token of SoftHSM: what they sign, and what happens while the token fails."""

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from solders.pubkey import Pubkey

from app.keeper.enforcer import BrakeEnforcer
from tests.support.escrows import agent, of
from tests.support.http import PATIENCE
from tests.support.service_world import Json, ServiceWorld, error_of
from tests.support.softhsm import PIN, SoftHsm, require_softhsm

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROLES = ("operator", "authority", "arbiter", "fee_payer")
#: Seconds that the service gives the token in these tests.
_LIMIT = 0.5


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> SoftHsm:
    require_softhsm()
    made = SoftHsm(tmp_path_factory.mktemp("vault"), dict.fromkeys(_ROLES, "ed25519"))
    # SoftHSM reads it when this process first loads the module.
    os.environ["SOFTHSM2_CONF"] = str(made.config)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="world")
async def _world(token: SoftHsm, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    named = {f"{role}_key": token.uri(role) for role in _ROLES}
    async with ServiceWorld(tmp_path_factory.mktemp("service"), pkcs11_timeout=_LIMIT, **named) as opened:
        yield opened


def _path(wallet: Json) -> str:
    return f"/v1/wallets/{wallet['wallet_id']}"


async def _frozen_on_chain(world: ServiceWorld, wallet: Json) -> bool:
    account = await world.service.chain.account(Pubkey.from_string(wallet["chain_address"]))
    assert account is not None
    return bool(world.service.codec.decode_account(account.data).data["frozen"])


async def test_token_signs_for_every_role(world: ServiceWorld, token: SoftHsm) -> None:
    roles = (await world.ok("GET", "/v1/organization"))["roles"]
    assert {role: roles[role] for role in _ROLES} == {role: str(Pubkey(token.points[role])) for role in _ROLES}
    assert [path.name for path in (world.settings.data_dir / "keys").iterdir()] == ["service-secret"]

    policy = await world.policy(maxPerTx="5")
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "20"})
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    paid = await world.pay(paying.wallet, receiving.id, "6", session=paying.session, key=paying.key)
    assert paid.json()["status"] == "confirmed"

    escrow = await paying.lock(receiving, "10")
    await paying.ok("POST", of(escrow, "dispute"), {"reason": "It is not what was asked for."})
    decided = await world.ok("POST", of(escrow, "resolve"), {"decision": "release"})
    assert decided["status"] == "released"

    frozen = await world.ok("PATCH", _path(paying.wallet), {"status": "frozen"})
    thawed = await world.ok("PATCH", _path(paying.wallet), {"status": "active"})
    assert (frozen["status"], thawed["status"]) == ("frozen", "active")
    assert await paying.balance() == "84.00"


@pytest.mark.proves("error signer_unavailable")
async def test_hung_token_holds_up_only_what_it_must_sign(world: ServiceWorld, token: SoftHsm) -> None:
    wallet, to = await world.wallet(), await world.payee()
    token.hang(True)
    try:
        begun = time.monotonic()
        payment = asyncio.create_task(world.pay(wallet, to, "1"))
        while not payment.done():
            # Reads of the embedded chain and the database end without giving way.
            await asyncio.sleep(0.01)
            asked = time.monotonic()
            await world.ok("GET", _path(wallet))
            assert time.monotonic() - asked < _LIMIT
        first = error_of(await payment, 503, "signer_unavailable")
        assert (await payment).headers["retry-after"] == "1"
        error_of(await world.pay(wallet, to, "1"), 503, "signer_unavailable")
        assert time.monotonic() - begun < 10 * _LIMIT
        assert "softhsm" not in first["message"].lower()

        # The freeze cannot be signed, so this service alone stops the payments.
        error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "signer_unavailable")
        error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
        assert await world.keeper().tick() == 0
    finally:
        token.hang(False)

    assert not await _frozen_on_chain(world, wallet)
    async with asyncio.timeout(PATIENCE):
        while world.service.brake.without_request():
            try:
                await BrakeEnforcer(world.service).tick()
            except Exception:  # noqa: BLE001 - the thread has not seen yet that the token goes on
                await asyncio.sleep(0.05)
    assert await _frozen_on_chain(world, wallet)
    assert await world.balance(to) == 0


async def test_job_of_the_keeper_waits_for_a_hung_token(
    world: ServiceWorld, token: SoftHsm, capsys: pytest.CaptureFixture[str]
) -> None:
    wallet = await world.wallet(funds=None)
    rule = {"enabled": True, "triggerBelow": "5", "topupAmount": "10"}
    await world.ok("PUT", f"{_path(wallet)}/auto-topup", rule)
    clock = [0.0]
    keeper = world.keeper(timer=lambda: clock[0])
    token.hang(True)
    try:
        assert await keeper.tick() == 0
    finally:
        token.hang(False)
    assert "Traceback" not in "".join(capsys.readouterr())
    async with asyncio.timeout(PATIENCE):
        while await keeper.tick() == 0:
            clock[0] += 3600
            await asyncio.sleep(0.05)
    await world.catch_up()
    assert (await world.ok("GET", _path(wallet)))["usdc_balance"] == "10.00"


@pytest.mark.proves("error signer_unavailable")
async def test_token_that_was_taken_out_signs_again_once_it_is_back(world: ServiceWorld, token: SoftHsm) -> None:
    wallet, to = await world.wallet(), await world.payee()
    token.take_out()
    try:
        error_of(await world.pay(wallet, to, "1", body={"idempotencyKey": "taken-out"}), 503, "signer_unavailable")
    finally:
        token.put_back()
    paid = await world.pay(wallet, to, "1", body={"idempotencyKey": "taken-out"})
    assert (paid.status_code, paid.json()["status"]) == (200, "confirmed")
    assert await world.balance(to) == 1_000_000


async def test_refused_pin_is_not_tried_again_before_its_file_is_written(world: ServiceWorld, token: SoftHsm) -> None:
    wallet, to = await world.wallet(), await world.payee()
    token.take_out()
    error_of(await world.pay(wallet, to, "1"), 503, "signer_unavailable")
    token.put_back()
    token.lock(True)
    error_of(await world.pay(wallet, to, "1"), 503, "signer_unavailable")
    token.lock(False)
    # A refused PIN that every request tries again would lock the token for good.
    error_of(await world.pay(wallet, to, "1"), 503, "signer_unavailable")
    token.write_pin(PIN)
    paid = await world.pay(wallet, to, "1")
    assert (paid.status_code, paid.json()["status"]) == (200, "confirmed")
