"""How a request waits for its transaction: for the read models where they follow by themselves, else by its status."""

import pytest

from app.submission.claim import Claim
from app.submission.plan import Outcome
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_STATUS = "getSignatureStatuses"


def _prompt(world: ServiceWorld) -> None:
    """Let the service believe that what lands is in the read models soon, as where it hears a node's notifications."""
    world.service.projector.prompt = lambda: True


async def test_payment_that_is_applied_soon_is_not_asked_for(own_world: ServiceWorld) -> None:
    wallet, to = await own_world.wallet(), await own_world.payee()
    _prompt(own_world)
    with own_world.line.asked() as methods:
        paid = (await own_world.pay(wallet, to, "1")).json()
    assert (paid["status"], _STATUS in methods) == ("confirmed", False)
    shown = await own_world.ok("GET", f"/v1/payments/{paid['tx_id']}")
    assert (shown["status"], shown["on_chain_slot"]) == ("confirmed", paid["on_chain_slot"])
    assert shown["on_chain_slot"] == await own_world.service.indexer.slot_of(paid["tx_signature"])


async def test_payment_that_is_not_applied_soon_is_asked_for(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await own_world.wallet(), await own_world.payee()
    _prompt(own_world)
    monkeypatch.setattr("app.submission.submitter._PROMPTLY", 0.05)
    # The follower finds nothing by itself.
    own_world.line.lose_requests = lambda method: method == "getSignaturesForAddress"
    with own_world.line.asked() as methods:
        paid = (await own_world.pay(wallet, to, "1")).json()
    assert (paid["status"], _STATUS in methods) == ("confirmed", True)


async def test_landed_failure_is_found_where_rows_are_waited_for(own_world: ServiceWorld) -> None:
    # Given a payment that lands and fails, because the wallet was frozen before
    pending = await own_world.unsent_payment(await own_world.payee())
    await own_world.ok("PATCH", f"/v1/wallets/{pending.wallet_id}", {"status": "frozen"})
    assert pending.raw is not None
    await own_world.service.chain.send(pending.raw)
    _prompt(own_world)

    outcome = await own_world.service.submitter.wait(Outcome(pending, "pending"), Claim(own_world.service.db))

    assert (outcome.status, outcome.custom_error is not None) == ("failed", True)
