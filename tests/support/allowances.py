"""Allowances on the chain of a `ServiceWorld`: granted without the service, and paid out by their delegates."""

from dataclasses import dataclass
from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.core.identifiers import allowance_id, new_reference
from app.store.allowances import AllowanceRecord, allowance, allowances
from app.submission.chain_state import with_budget
from tests.support.escrows import Agent
from tests.support.service_world import ServiceWorld

USDC = 10**6
DECIMALS = 6
TRANSFER_CHECKED, BURN_CHECKED = 12, 15


@dataclass
class Purse:
    """An allowance with its delegate's key, and the owner and token account of its recipient."""

    world: ServiceWorld
    address: Pubkey
    delegate: Keypair
    owner: str
    destination: Pubkey

    @property
    def tokens(self) -> Pubkey:
        return self.world.service.addresses.allowance_tokens(self.address)

    async def pay(self, amount: int, to: Pubkey | None = None) -> str:
        """Transfer micro-USDC as the delegate, and return the signature."""
        to = to or self.destination
        return await send(self.world, [self.transfer(amount, to)], self.delegate)

    def transfer(self, amount: int, to: Pubkey) -> Instruction:
        mint = self.world.service.addresses.mint
        accounts = [(self.tokens, False, True), (mint, False, False), (to, False, True)]
        return self._token_instruction(TRANSFER_CHECKED, accounts, amount)

    async def burn(self, amount: int) -> str:
        """Burn micro-USDC of the allowance as the delegate, and return the signature. No other balance changes."""
        mint = self.world.service.addresses.mint
        return await send(
            self.world,
            [self._token_instruction(BURN_CHECKED, [(self.tokens, False, True), (mint, False, True)], amount)],
            self.delegate,
        )

    def _token_instruction(self, code: int, accounts: list[tuple[Pubkey, bool, bool]], amount: int) -> Instruction:
        metas = [AccountMeta(*one) for one in [*accounts, (self.delegate.pubkey(), True, False)]]
        data = bytes([code]) + amount.to_bytes(8, "little") + bytes([DECIMALS])
        return Instruction(self.world.service.addresses.token_program, data, metas)


async def send(world: ServiceWorld, instructions: list[Instruction], *signers: Keypair) -> str:
    """Send a transaction without the service. Return its signature once it has succeeded."""
    chain, signed = world.service.chain, await world.signed_outside(instructions, *signers)
    await chain.send(signed.raw)
    status = await chain.confirm(signed.signature, timeout=5)
    assert status is not None
    assert status.err is None, status.err
    return signed.signature


async def tokens_of(world: ServiceWorld, owner: str) -> Pubkey:
    return world.service.addresses.token_account(Pubkey.from_string(owner))


async def grant(world: ServiceWorld, agent: Agent, amount: int, **options: Any) -> Purse:
    """Grant an allowance without the service, signed by session and operator. By default, its payee is new."""
    purse, granting = await granting_of(world, agent, amount, **options)
    status = await world.land([granting], agent.session_key, world.service.signers.operator)
    assert status.err is None, status.err
    return purse


async def granting_of(world: ServiceWorld, agent: Agent, amount: int, **options: Any) -> tuple[Purse, Instruction]:
    """Return an allowance that is not granted yet, and the instruction that grants it.

    Session and operator must sign the instruction.
    """
    vault = Pubkey.from_string(agent.vault)
    fields = await world.fields(vault)
    owner = options.pop("to", None) or await world.payee()
    purse = Purse(
        world,
        world.service.addresses.allowance(vault, fields["allowance_counter"]),
        Keypair(),
        owner,
        await tokens_of(world, owner),
    )
    signers = world.service.signers
    budget = None if fields["budget"] == Pubkey.default() else fields["budget"]
    granting = world.build.grant_allowance(
        payer=signers.fee_payer_address,
        signer=agent.session_key.pubkey(),
        operator=signers.operator_address,
        policy=fields["policy"],
        vault=vault,
        destination=purse.destination,
        delegate=purse.delegate.pubkey(),
        counter=fields["allowance_counter"],
        amount=amount,
        reference=options.pop("reference", new_reference()),
        expires_at=world.service.clock.now() + options.pop("expires_in", 120),
        budget=budget,
        **options,
    )
    return purse, granting


async def settle(world: ServiceWorld, purse: Purse) -> str:
    """Settle an allowance without the service, as the operator."""
    account = await world.fields(purse.address)
    accounts = await with_budget(world.service, OpenAllowance(purse.address, account["vault"], account["payer"]))
    operator = world.service.signers.operator
    settling = world.build.settle_allowance(accounts, signer=operator.pubkey())
    return await send(world, [settling], operator)  # type: ignore[arg-type]


async def known(world: ServiceWorld, purse: Purse) -> AllowanceRecord:
    """Return the service's record of an allowance after reading the chain, including any settlement."""
    await world.catch_up()
    await world.service.indexer.check(late=False)
    await world.catch_up()
    identifier = allowance_id(purse.address)
    found = world.service.db.read_now(lambda conn: allowance(conn, world.org, identifier))
    assert found is not None
    return found


def allowances_of(world: ServiceWorld, agent: Agent) -> list[AllowanceRecord]:
    """Return the service's records of the agent's allowances, newest first."""
    return world.service.db.read_now(lambda conn: allowances(conn, world.org, agent.id)).data
