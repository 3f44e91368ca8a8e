"""Transactions of version 1 have the same effects as others: rows, events, attempts, exports.

The service signs each with a newer solders, and the embedded chain carries out one with the same instructions instead.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.system_program import TransferParams, transfer
from spl.token.instructions import TransferCheckedParams, transfer_checked
from sqlalchemy import select

from app.chain.errors import RpcError
from app.chain.transactions import Signed, sign
from app.core.signers import Signer
from app.localnet.tokens import TOKEN_PROGRAM
from app.store.attempts import attempt
from app.store.feed import table as feed
from app.store.organisations import reserves
from app.store.read_tables import policies, transactions, wallets
from app.submission.context import Service
from app.verifier.verify import verify
from idl.transactions import OPTIONS, SignedTransaction, parse, signed
from tests.support.escrows import Agent, agent
from tests.support.exports import export
from tests.support.runtimes import Runtime
from tests.support.service_world import Json, ServiceWorld
from tests.support.version1 import Version1

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DERIVED = ("tx_id", "event_id", "signature", "tx_signature", "attestation_hash", "agent_attestation_hash")
"""Fields that follow from the message or its signatures, which differ between versions."""
_WHEN = {feed.c.position, wallets.c.balance_slot, wallets.c.balance_row, reserves.c.slot}
"""Columns that follow from when, and in which order, a service has looked."""


@dataclass
class Story:
    """An organisation whose transactions are of version 1: what its service answered, and what it was not asked for."""

    world: ServiceWorld
    version_1: Version1
    payer: Agent
    answers: dict[str, Json]
    deposit: str

    async def shown(self, signature: str) -> SignedTransaction:
        """Return a transaction as the service gets it."""
        raw = await self.world.service.chain.call("getTransaction", [signature, OPTIONS])
        assert raw["version"] == 1
        return signed(raw)


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="story")
async def _story(world: ServiceWorld, newer_solders: Runtime) -> AsyncIterator[Story]:
    version_1, through = Version1(newer_solders), world.line.through

    def sign_version_1(
        instructions: Sequence[Instruction], *, payer: Signer, signers: Sequence[Signer] = (), blockhash: Hash
    ) -> Signed:
        legacy = sign(instructions, payer=payer, signers=signers, blockhash=blockhash)
        raw = version_1.add(legacy.raw, [one for one in (payer, *signers) if isinstance(one, Keypair)])
        return Signed(str(parse(raw).signatures[0]), raw)

    async def sign_for_service(*args: Any, **options: Any) -> Signed:
        return sign_version_1(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.submission.submitter.sign_with_any", sign_for_service)
        patch.setattr("tests.support.service_world.sign", sign_version_1)
        world.line.through = lambda body: version_1.answer(body, through)
        policy = await world.policy(maxPerTx="50", requireCoSign="40")
        payer, to = await agent(world, policy["policy_id"]), await world.payee()
        body = {"walletId": payer.id, "to": to, "amount": "5", "currency": "USDC"}
        answers = {
            "payment": await payer.ok("POST", "/v1/payments", body),
            "co-signed": await world.ok(
                "POST", "/v1/payments", {**body, "amount": "45"}, headers={"Session-Token": payer.session}
            ),
            "freeze": await world.ok("PATCH", f"/v1/wallets/{payer.id}", {"status": "frozen"}),
        }
        yield Story(world, version_1, payer, answers, await _deposit(world, 7_000_000))
        world.line.through = through


async def _deposit(world: ServiceWorld, amount: int) -> str:
    """Transfer micro-USDC of a stranger into the reserve, and return the transaction's signature."""
    stranger, addresses = Keypair(), world.service.addresses
    source = await world.token_account(stranger.pubkey())
    await world.localnet.mint_usdc(source, amount)
    reserve = world.build.reserve_tokens
    parameters = TransferCheckedParams(
        TOKEN_PROGRAM, source, addresses.mint, reserve, stranger.pubkey(), amount, decimals=6
    )
    assert (await world.land([transfer_checked(parameters)], stranger)).err is None
    await _look(world.service)
    return (await world.signatures(str(reserve)))[0]


async def _look(service: Service) -> None:
    # The program's history does not show a deposit; comparing balances does.
    await service.indexer.check()
    await service.indexer.catch_up()
    await service.projector.catch_up()


def _without_derived(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_derived(one) for name, one in value.items() if name not in _DERIVED}
    return [_without_derived(one) for one in value] if isinstance(value, list) else value


def _read_models(service: Service) -> list[Any]:
    """Return the rows that follow from the chain, without what follows from the bytes of its transactions."""
    found = []
    for table in (transactions, feed, wallets, policies, reserves):
        statement = select(*(one for one in table.c if one not in _WHEN))
        rows = service.db.read_now(lambda conn, statement=statement: conn.execute(statement).mappings().all())  # type: ignore[misc]
        # A service without attempts reports lost commits, at the time of the report.
        kept = (row for row in rows if row.get("type") != "database.commits_lost")
        found.append(sorted((_without_derived({**row}) for row in kept), key=repr))
    return found


@pytest.mark.parametrize("kind", ["payment", "co-signed"])
async def test_payment_is_the_attempt_that_the_service_signed(story: Story, kind: str) -> None:
    answer = story.answers[kind]

    assert answer["status"] == "confirmed"
    stored = story.world.service.db.read_now(lambda conn: attempt(conn, answer["tx_id"]))
    assert stored is not None
    assert (stored.status, stored.signature) == ("confirmed", answer["tx_signature"])
    landed = await story.shown(answer["tx_signature"])
    assert stored.raw == landed.signed_with(landed.signatures)
    assert stored.message_hash == landed.message_hash == hashlib.sha256(landed.message).hexdigest()
    operator = story.world.service.signers.operator_address
    assert (operator in landed.signers) == (kind == "co-signed")
    for signature, key in zip(landed.signatures, landed.signers, strict=True):
        assert signature.verify(key, landed.message)
    [row] = [one for one in await _rows(story) if one["tx_id"] == answer["tx_id"]]
    assert (row["status"], row["tx_signature"]) == ("confirmed", answer["tx_signature"])
    if kind == "payment":
        assert row["agent_attestation_hash"] == f"sha256:{landed.message_hash}"


async def _rows(story: Story) -> list[Json]:
    return list((await story.world.ok("GET", "/v1/transactions?limit=100"))["data"])


async def test_freeze_is_reported(story: Story) -> None:
    assert story.answers["freeze"]["status"] == "frozen"
    events = (await story.world.ok("GET", "/v1/events?type=wallet.frozen"))["data"]
    assert [one["reason"] for one in events if one["wallet_id"] == story.payer.id] == ["manual"]
    [newest, *_] = await story.world.signatures(story.payer.vault)
    assert story.world.service.signers.operator_address in (await story.shown(newest)).signers


async def test_transaction_of_a_stranger_that_names_the_program_stops_nothing(story: Story) -> None:
    world, stranger = story.world, Keypair()
    await world.localnet.airdrop(stranger.pubkey(), 10**9)
    nothing = transfer(TransferParams(from_pubkey=stranger.pubkey(), to_pubkey=stranger.pubkey(), lamports=1))
    named = AccountMeta(world.service.codec.program_id, is_signer=False, is_writable=False)
    naming = Instruction(nothing.program_id, bytes(nothing.data), [*nothing.accounts, named])
    assert (await world.land([naming], stranger)).err is None
    [newest, *_] = await world.signatures(str(world.service.codec.program_id))
    assert stranger.pubkey() in (await story.shown(newest)).signers

    policy = await world.policy()
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "5"})
    wallet = f"/v1/wallets/{(await world.wallet(policy['policy_id']))['wallet_id']}"
    await world.ok("POST", f"{wallet}/rotate-token", {})
    for status in ("frozen", "active"):
        assert (await world.ok("PATCH", wallet, {"status": status}))["status"] == status


async def test_deposit_is_reported(story: Story) -> None:
    events = (await story.world.ok("GET", "/v1/events?type=org.deposit_confirmed"))["data"]
    [event] = [one for one in events if one["tx_signature"] == story.deposit]
    assert event["amount"] == "7.00"
    assert (await story.shown(story.deposit)).version == 1


async def test_read_models_are_those_of_the_same_legacy_transactions(story: Story) -> None:
    found = []
    for through in (story.world.line.through, None):
        async with story.world.twin(through) as (service, _):
            await _look(service)
            found.append(_read_models(service))
    of_version_1, legacy = found
    for one, other in zip(of_version_1, legacy, strict=True):
        assert one == other
    assert {"payment", "funding"} <= {row["type"] for row in legacy[0]}


@pytest.mark.parametrize("form", ["csv", "json"])
async def test_export_is_verified(story: Story, tmp_path: Path, form: str) -> None:
    # Rows of the export's last slot may be missing.
    await story.world.later(1)
    path = await export(story.world, tmp_path / f"all.{form}", format=form)

    report = await verify(path, story.world.line.through)

    assert report.problems == report.unsure == []
    assert report.verified >= 3


async def test_client_of_older_versions_is_refused(story: Story) -> None:
    signature = story.answers["payment"]["tx_signature"]
    for options in (
        {**OPTIONS, "maxSupportedTransactionVersion": 0},
        {"encoding": "base64", "commitment": "confirmed"},
    ):
        with pytest.raises(RpcError) as refused:
            await story.world.service.chain.call("getTransaction", [signature, options])
        assert refused.value.code == -32015


async def test_version_1_is_shown_consistently(story: Story) -> None:
    chain, signature = story.world.service.chain, story.answers["payment"]["tx_signature"]
    assert signature in await story.world.signatures(story.payer.vault)
    [status] = (await chain.statuses([signature])).found
    assert status is not None
    await story.world.later(60)
    block = await chain.finalized_block(status.slot)
    assert block is not None
    assert signature in block.signatures
