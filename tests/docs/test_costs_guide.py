"""Measures every figure of the guide of costs on the embedded chain."""

import re
from collections.abc import Awaitable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair

from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TEXT = (Path(__file__).resolve().parents[2] / "app/docs/guides/costs.md").read_text(encoding="utf-8")
_ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in _TEXT.splitlines() if line.startswith("| ")]
_SOL = Decimal(10**9)
_HASH = f"sha256:{'ab' * 32}"


class _Meter:
    """Measures the SOL that the fee payer spends."""

    def __init__(self, world: ServiceWorld) -> None:
        self._world = world
        #: SOL that each operation costs, and SOL that a later operation returns.
        self.costs: dict[str, Decimal] = {}
        self.returns: dict[str, Decimal] = {}

    async def _balance(self) -> int:
        account = await self._world.service.chain.account(self._world.service.signers.fee_payer_address)
        assert account is not None
        return account.lamports

    async def spent(self, work: Awaitable[Any]) -> tuple[Decimal, Any]:
        before = await self._balance()
        answer = await work
        return (before - await self._balance()) / _SOL, answer

    async def costs_of(self, name: str, work: Awaitable[Any]) -> Any:
        self.costs[name], answer = await self.spent(work)
        self.returns.setdefault(name, Decimal(0))
        return answer

    async def ends(self, name: str, work: Awaitable[Any]) -> None:
        """Measure the SOL that the end of an object returns, less the fee of this transaction."""
        spent, _ = await self.spent(work)
        self.returns[name] = -spent


async def _measured(world: ServiceWorld) -> _Meter:
    meter, ok = _Meter(world), world.ok
    policy = await meter.costs_of("a policy", world.policy(requireCoSign="5"))
    wallet: Json = await meter.costs_of("a wallet", world.wallet(policy["policy_id"], None))
    path = f"/v1/wallets/{wallet['wallet_id']}"
    funding = ok("POST", f"{path}/fund", {"amount": "50", "currency": "USDC"})
    _, token = [
        await meter.costs_of(name, work) for name, work in (("funding", funding), ("token", world.session(wallet)))
    ]
    to, key = await world.payee(), world.key("agent", wallet["wallet_id"])
    agent: Any = {"key": key, "session": token}
    await meter.costs_of("a payment", world.pay(wallet, to, "1", **agent))
    new = str(Keypair().pubkey())
    await meter.costs_of("a payment to an address without a USDC account", world.pay(wallet, new, "1"))
    refused, answer = await meter.spent(world.pay(wallet, to, "6", **agent))
    assert answer.status_code == 402
    assert refused == 0
    approve = f"/v1/approvals/{answer.json()['error']['approval_id']}/approve"
    await meter.costs_of("the approval of a payment", ok("POST", approve))
    await meter.ends("the approval of a payment", world.pay(wallet, to, "6", **agent))
    other = await world.wallet(policy["policy_id"], None)
    body = {"fromWallet": wallet["wallet_id"], "toWallet": other["wallet_id"], "amount": "1", "currency": "USDC"}
    escrow = ok("POST", "/v1/payments/a2a", {**body, "taskDescription": "A task", "expectedOutputHash": _HASH})
    made = await meter.costs_of("an escrow", escrow)
    done = {"proofType": "output_hash", "proof": _HASH}
    await meter.ends("an escrow", ok("POST", f"/v1/payments/a2a/{made['escrow_id']}/complete", done))
    await meter.costs_of("freeze", ok("PATCH", path, {"status": "frozen"}))
    await ok("PATCH", path, {"status": "active"})
    await meter.costs_of("withdrawal", ok("POST", f"{path}/withdraw", {"amount": "all"}))
    await meter.ends("a wallet", ok("DELETE", path))
    unused = await world.policy()
    await meter.ends("a policy", ok("DELETE", f"/v1/policies/{unused['policy_id']}"))
    register = ok("PUT", f"/v1/recipients/{Keypair().pubkey()}", {"category": "marketplace"})
    await meter.costs_of("the registration of a recipient", register)
    return meter


async def test_costs_are_as_shown(own_world: ServiceWorld) -> None:
    meter = await _measured(own_world)

    small = {meter.costs.pop(name) for name in ("funding", "withdrawal", "token", "freeze")}
    assert small == {meter.costs["a payment"]}
    meter.costs["a funding, a withdrawal, a session token, a freeze"] = meter.costs["a payment"]
    shown = {
        cells[0]: (Decimal(cells[1]), Decimal(cells[2])) for cells in _ROWS if len(cells) == 4 and cells[1] != "SOL"
    }
    assert shown == {name: (cost, meter.returns.get(name, 0)) for name, cost in meter.costs.items()}

    # And the month follows from them
    net = {name: cost - meter.returns.get(name, Decimal(0)) for name, cost in meter.costs.items()}
    fee = meter.costs["a payment"]
    each = {
        "payments": fee,
        "accounts opened for recipients": net["a payment to an address without a USDC account"] - fee,
        "approvals": net["the approval of a payment"] - fee,
        "escrows and their settlements": net["an escrow"],
        "session tokens": fee,
        "times a wallet is funded": fee,
    }
    month = {cells[0]: cells for cells in _ROWS if len(cells) == 3 and cells[0] != "in a month"}
    sums = {name: int(month[name][1].replace(",", "")) * cost for name, cost in each.items()}
    assert {name: Decimal(cells[2]) for name, cells in month.items()} == {**sums, "total": sum(sums.values())}
    once = 20 * meter.costs["a wallet"] + meter.costs["a policy"]
    back = 20 * meter.returns["a wallet"] + meter.returns["a policy"]
    assert [Decimal(number) for number in re.findall(r"(0\.\d+) SOL (?:once|returns)", _TEXT)] == [once, back]
