"""A node that lies and forgets, between service and chain: nothing is paid twice, denied, refused wrongly or lost.

In one process, and as in production: chain, proxy and service apart, the service killed again and again. With `--full`
there are three runs of eight minutes.
"""

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.system_program import TransferParams, transfer

from app.chain.errors import ChainUnavailable
from app.chain.transactions import sign
from app.server.health import Health
from app.submission.recovery import Recovery
from idl.codec import load
from tests.recovery.deployment import Deployment, deployed
from tests.support.agreement import (
    export_problems,
    history,
    pending,
    unlike_the_chain,
    within,
    wronged,
    wronged_escrows,
)
from tests.support.escrows import A2A, OUTPUT, agent, of, shows_output, terms
from tests.support.faults import Faults, FaultyTransport, Strange
from tests.support.fleet import Fleet
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_AGENTS = 8
#: Seconds after the end of the faults until the rows equal the chain's events, and until nothing is pending.
_EQUAL, _DECIDED = 60.0, 180.0
#: Seconds in which the last answers reach the rows.
_SETTLED = 10.0
_STRANGE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class _Profile:
    """The lives of the service, each of so many seconds, the share of false answers, and the milliseconds of a slot."""

    seeds: tuple[int, ...]
    lives: int
    lifetime: float
    share: float
    slot_ms: int


#: By `--full`. Short slots let transactions expire soon.
_PROFILES = {False: _Profile((1,), 2, 9.0, 0.2, 100), True: _Profile((1, 2, 3), 16, 30.0, 0.12, 400)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test with the seeds of the profile."""
    if "chaos_seed" in metafunc.fixturenames:
        metafunc.parametrize("chaos_seed", _PROFILES[metafunc.config.getoption("--full")].seeds)


async def test_lies_and_kills_leave_service_and_chain_agreed(
    tmp_path: Path, request: pytest.FixtureRequest, chaos_seed: int
) -> None:
    profile = _PROFILES[request.config.getoption("--full")]
    faults = Faults(chaos_seed, longest=11.0)
    async with deployed(tmp_path, faults, slot_ms=profile.slot_ms) as deployment:
        # Given agents at work
        fleet = Fleet(deployment.client, chaos_seed)
        await fleet.recruit(_AGENTS)
        work = asyncio.create_task(fleet.work())
        strangers = asyncio.create_task(_strangers(deployment))

        # When the node lies and the service is killed, again and again
        faults.share = profile.share
        for life in range(profile.lives):
            if life:
                await deployment.restart()
            await asyncio.sleep(profile.lifetime)
        faults.share = 0.0
        ended = time.monotonic()
        fleet.stop()
        strangers.cancel()
        await work

        # Then every request gets its answer, and all show what the chain has
        async with asyncio.timeout(_DECIDED), asyncio.TaskGroup() as tasks:
            finishing = tasks.create_task(fleet.finish())
            different = await within(ended + _EQUAL - time.monotonic(), lambda: unlike_the_chain(deployment, fleet))
            equal_after = time.monotonic() - ended
            await finishing
        undecided = await within(ended + _DECIDED - time.monotonic(), lambda: pending(fleet))
        decided_after = time.monotonic() - ended
        different += await within(_SETTLED, lambda: unlike_the_chain(deployment, fleet))
        events = await history(deployment)
        contradicted = [*await wronged(deployment, fleet, events), *await wronged_escrows(fleet, events)]
        exported = await export_problems(deployment, fleet)
        incomplete = await within(ended + _DECIDED - time.monotonic(), lambda: _incomplete(deployment))
        log = deployment.logged()
        print(
            f"seed {chaos_seed}: {fleet.requests} requests, {faults.requests} calls of the node, "
            f"{sum(faults.counts.values())} faults, {deployment.kills} kills, {len(deployment.failed_starts)} failed "
            f"starts; equal after {equal_after:.0f} s, nothing pending after {decided_after:.0f} s\n"
            f"answers: {dict(fleet.outcomes.most_common())}\nfaults: {dict(faults.counts.most_common())}"
        )
        problems = {
            "unlike the chain": different,
            "still pending": undecided,
            "contradicted by the chain": contradicted,
            "wrong answer": fleet.wrong,
            "wrong export": exported,
            "hole or gap": incomplete,
        }
        for kind, found in problems.items():
            for one in found:
                print(f"{kind}: {one}")
        assert not any(problems.values())
        assert "Traceback" not in log
        assert "internal_error" not in log
        assert sum(faults.counts.values()) > profile.lives * profile.lifetime


async def _strangers(deployment: Deployment) -> None:
    """Land transactions that only name the program, and that the faulty node shows in other versions."""
    kinds, chain, payer = itertools.cycle(get_args(Strange)), deployment.chain, Keypair()
    assert await chain.confirm(await chain.airdrop(payer.pubkey(), 10**10), timeout=10)
    while True:
        step = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=payer.pubkey(), lamports=1))
        named = [*step.accounts, AccountMeta(load().program_id, is_signer=False, is_writable=False)]
        blockhash = (await chain.blockhash(fresh=True)).hash
        signed = sign([Instruction(step.program_id, step.data, named)], payer=payer, signers=[], blockhash=blockhash)
        deployment.faults.strange[signed.signature] = next(kinds)
        await chain.send(signed.raw)
        await asyncio.sleep(_STRANGE_EVERY)


async def _incomplete(deployment: Deployment) -> list[str]:
    """Return the holes of transactions that could be read by now, those that are not listed, and gaps."""
    ready = (await deployment.client.get("/readyz")).json()
    strange = deployment.faults.strange
    never = {signature for signature, kind in strange.items() if kind == "malformed"}
    listed = {line.split()[1] for line in await deployment.holes() if line.startswith("transaction")}
    counted = ready.get("unreadable_transactions", {"count": 0})["count"]
    found = [f"{one} is a hole" for one in listed - never] + [f"{one} is not listed" for one in never - listed]
    found += [f"events of {one} are missing" for one in ready.get("missing_events", ())]
    return found if counted == len(listed) else [*found, f"{counted} of {len(listed)} holes are counted: {ready}"]


@pytest.mark.parametrize("seed", range(3))
async def test_false_answers_are_503_in_every_request(
    own_world: ServiceWorld, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    world = own_world
    paying, receiving = await agent(world), await agent(world, funds=None)
    recipients = [str(Keypair().pubkey()) for _ in range(3)]
    made = await world.policy(maxPerTx="10", allowedRecipients=recipients)
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.5)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    faults = Faults(seed)
    world.line.through = FaultyTransport(world.line.through, faults)
    _app: Any = world.client._transport
    _app.app.state.health = Health(world.service, remember=0.0)
    answers = []

    async def call(method: str, where: str, body: Any = None) -> None:
        answers.append(await world.call(method, where, body))

    for round_ in range(3):
        escrow = await paying.lock(receiving, expectedOutputHash=f"sha256:{OUTPUT}")
        faults.share = 0.25
        answers += [await world.pay(wallet, to, "0.01") for _ in range(3)]
        answers.append(await world.pay(wallet, to, "1000"))
        answers.append(await receiving.call("POST", of(escrow, "complete"), shows_output()))
        answers.append(await paying.call("POST", A2A, terms(paying, receiving, "0.1")))
        await call("POST", f"{path}/fund", {"amount": "1", "currency": "USDC"})
        await call("POST", f"{path}/rotate-token", {})
        await call("PATCH", path, {"status": "frozen" if round_ % 2 else "active"})
        await call("PATCH", f"/v1/policies/{made['policy_id']}", {"maxPerTx": f"{round_ + 1}"})
        await call("PATCH", f"/v1/policies/{made['policy_id']}", {"allowedRecipients": recipients[: round_ % 3 + 1]})
        await call("GET", f"/v1/policies/{made['policy_id']}")
        await call("GET", f"/v1/policies/{made['policy_id']}/audit-log")
        await call("POST", f"/v1/policies/{made['policy_id']}/preview", {"maxPerTx": "1"})
        simulated = {"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"}
        await call("POST", "/v1/payments/simulate", simulated)
        await call("GET", "/readyz")
        with contextlib.suppress(*Recovery.outages):
            await world.service.part(Recovery).recover()
        with contextlib.suppress(ChainUnavailable):
            await world.keeper().tick()
        faults.share = 0.0
        await world.service.part(Recovery).recover()
        await world.catch_up()

    bad = [one for one in answers if one.status_code >= 500 and one.status_code != 503]
    assert [one.text for one in bad] == []
    unavailable = [one for one in answers if one.status_code == 503]
    assert unavailable
    assert {one.headers.get("retry-after") for one in unavailable} == {"1"}
    assert {one.json()["error"]["code"] for one in unavailable} <= {"chain_unavailable", "not_ready"}
    assert "Traceback" not in "".join(capsys.readouterr())
