"""Durable nonces, executed as by a validator."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import (
    AdvanceNonceAccountParams,
    advance_nonce_account,
    create_nonce_account,
)
from solders.transaction import VersionedTransaction

from app.localnet import Localnet
from tests.support.localnet import CONFIRMED, SOL, Client, ManualClock, client, encoded, pay

_BASE64 = {"encoding": "base64"}
_RENT = 1_447_680


@dataclass
class Nonce:
    """A nonce account, its authority and the chain."""

    rpc: Client
    address: Pubkey
    authority: Keypair

    @classmethod
    async def create(cls, rpc: Client, authority: Keypair | None = None) -> "Nonce":
        payer, account = await rpc.wallet(), Keypair()
        owner = authority or await rpc.wallet()
        steps = create_nonce_account(payer.pubkey(), account.pubkey(), owner.pubkey(), _RENT)
        message = Message.new_with_blockhash(steps, payer.pubkey(), rpc.blockhash())
        await rpc.send(VersionedTransaction(message, [payer, account]))
        return cls(rpc, account.pubkey(), owner)

    def stored(self) -> Hash:
        account = self.rpc.localnet.chain.bank.get(self.address)
        assert account is not None
        return Hash(bytes(account.data)[40:72])

    def advance(self, authority: Pubkey | None = None) -> Instruction:
        params = AdvanceNonceAccountParams(
            nonce_pubkey=self.address, authorized_pubkey=authority or self.authority.pubkey()
        )
        return advance_nonce_account(params)

    def signed(self, *steps: Instruction, nonce: Hash | None = None) -> VersionedTransaction:
        return self.of([self.advance(), *steps], nonce)

    def of(self, steps: Sequence[Instruction], nonce: Hash | None = None) -> VersionedTransaction:
        return self.rpc.signed(self.authority, *steps, blockhash=nonce or self.stored())


@pytest.fixture
async def nonce(rpc: Client, clock: ManualClock) -> Nonce:
    made = await Nonce.create(rpc)
    clock.advance_slots(1)
    return made


async def _lamports(rpc: Client, address: Pubkey) -> int:
    return int((await rpc("getBalance", str(address), CONFIRMED))["value"])


async def _refusal(rpc: Client, transaction: VersionedTransaction) -> object:
    return (await rpc.failure("sendTransaction", encoded(transaction), _BASE64)).data["err"]


async def test_nonce_outlives_every_blockhash(rpc: Client, nonce: Nonce, clock: ManualClock) -> None:
    to = Keypair().pubkey()
    transaction = nonce.signed(pay(nonce.authority, to, SOL // 10))
    clock.advance(7 * 86_400)

    simulated = await rpc("simulateTransaction", encoded(transaction), {**_BASE64, "sigVerify": True})
    assert (simulated["value"]["err"], await _lamports(rpc, to)) == (None, 0)
    await rpc.send(transaction)

    assert await _lamports(rpc, to) == SOL // 10
    assert await _lamports(rpc, nonce.authority.pubkey()) == SOL - SOL // 10 - 5000
    assert nonce.stored() != transaction.message.recent_blockhash


async def test_transaction_on_a_nonce_executes_once(rpc: Client, nonce: Nonce, clock: ManualClock) -> None:
    transaction = nonce.signed(pay(nonce.authority, Keypair().pubkey(), SOL // 10))
    await rpc.send(transaction)
    for slots in (0, 1, 200):
        clock.advance_slots(slots)
        assert await _refusal(rpc, transaction) == "BlockhashNotFound"
    simulated = await rpc("simulateTransaction", encoded(transaction), _BASE64)
    assert simulated["value"]["err"] == "BlockhashNotFound"


async def test_failed_transaction_pays_and_advances_its_nonce(rpc: Client, nonce: Nonce) -> None:
    to, before = Keypair().pubkey(), nonce.stored()
    transaction = nonce.signed(pay(nonce.authority, to, 2 * SOL))

    preflight = await rpc.failure("sendTransaction", encoded(transaction), _BASE64)
    assert preflight.data["err"] == {"InstructionError": [1, {"Custom": 1}]}
    assert (nonce.stored(), await _lamports(rpc, nonce.authority.pubkey())) == (before, SOL)
    signature = await rpc.send(transaction, skipPreflight=True)

    [status] = (await rpc("getSignatureStatuses", [signature]))["value"]
    assert status["err"] == {"InstructionError": [1, {"Custom": 1}]}
    assert await _lamports(rpc, nonce.authority.pubkey()) == SOL - 5000
    assert nonce.stored() != before
    assert await _refusal(rpc, transaction) == "BlockhashNotFound"


async def test_nonce_advances_once_a_slot(rpc: Client, nonce: Nonce, clock: ManualClock) -> None:
    await rpc.send(nonce.signed(pay(nonce.authority, Keypair().pubkey(), SOL // 10)))
    second = nonce.signed(pay(nonce.authority, Keypair().pubkey(), SOL // 10))
    assert await _refusal(rpc, second) == "BlockhashNotFound"
    clock.advance_slots(1)
    await rpc.send(second)
    assert nonce.stored() != second.message.recent_blockhash


async def test_nonce_never_returns_by_advances_on_old_blockhashes(
    rpc: Client, nonce: Nonce, clock: ManualClock
) -> None:
    old, seen = rpc.blockhash(), {nonce.stored()}
    for number in range(3):
        clock.advance_slots(1)
        step = pay(nonce.authority, nonce.authority.pubkey(), number)
        await rpc.send(nonce.of([nonce.advance(), step], old))
        seen.add(nonce.stored())
    assert len(seen) == 4


async def test_nonce_that_lets_nothing_in(rpc: Client, nonce: Nonce) -> None:
    stranger, to = await rpc.wallet(), Keypair().pubkey()
    step = pay(nonce.authority, to, SOL // 10)
    advance = nonce.advance()
    fixed = [AccountMeta(meta.pubkey, meta.is_signer, False) for meta in advance.accounts]
    refused = [
        nonce.of([step, advance]),
        nonce.of([step]),
        nonce.signed(step, nonce=Hash.new_unique()),
        nonce.of([Instruction(advance.program_id, bytes(advance.data), fixed), step]),
        nonce.of([Instruction(advance.program_id, bytes(advance.data), []), step]),
        rpc.signed(stranger, nonce.advance(stranger.pubkey()), pay(stranger, to, 1), blockhash=nonce.stored()),
    ]
    for transaction in refused:
        assert await _refusal(rpc, transaction) == "BlockhashNotFound"
    assert await _lamports(rpc, to) == 0


async def test_advance_on_a_recent_blockhash_is_an_ordinary_one(rpc: Client, nonce: Nonce) -> None:
    before = nonce.stored()
    failing = nonce.of([nonce.advance(), pay(nonce.authority, Keypair().pubkey(), 2 * SOL)], rpc.blockhash())
    await rpc.send(failing, skipPreflight=True)
    assert nonce.stored() == before

    await rpc.send(nonce.of([nonce.advance()], rpc.blockhash()))
    assert nonce.stored() != before


async def test_nonce_is_no_valid_blockhash(rpc: Client, nonce: Nonce) -> None:
    assert not (await rpc("isBlockhashValid", str(nonce.stored()), CONFIRMED))["value"]


async def test_nonce_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        nonce = await Nonce.create(client(localnet))
        clock.advance_slots(1)
        first = nonce.signed(pay(nonce.authority, Keypair().pubkey(), SOL // 10))
        await nonce.rpc.send(first)
        second = nonce.signed(pay(nonce.authority, Keypair().pubkey(), SOL // 10))
    clock.advance(86_400)
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        rpc = client(localnet)
        assert await _refusal(rpc, first) == "BlockhashNotFound"
        await rpc.send(second)
        assert await _refusal(rpc, second) == "BlockhashNotFound"
