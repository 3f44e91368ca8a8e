"""USDC transferred past the API: into the reserve, or straight into a wallet's vault."""

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import TransferCheckedParams, transfer_checked

from app.core.money import parse_usdc
from app.localnet.tokens import TOKEN_PROGRAM
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _depositor(world: ServiceWorld, amount: int) -> Keypair:
    """Return the owner of a token account that holds this much micro-USDC."""
    owner = Keypair()
    build, payer = world.build, world.service.signers.fee_payer.pubkey()
    await world.land([build.create_token_account(payer=payer, owner=owner.pubkey())])
    await world.localnet.mint_usdc(world.service.addresses.token_account(owner.pubkey()), amount)
    return owner


async def _transfer(world: ServiceWorld, owner: Keypair, to: Pubkey, amount: int) -> None:
    addresses = world.service.addresses
    transfer = transfer_checked(
        TransferCheckedParams(
            program_id=TOKEN_PROGRAM,
            source=addresses.token_account(owner.pubkey()),
            mint=addresses.mint,
            dest=to,
            owner=owner.pubkey(),
            amount=amount,
            decimals=6,
        )
    )
    assert (await world.land([transfer], owner)).err is None


async def _look(world: ServiceWorld) -> None:
    # The program's history does not show it; comparing balances does.
    await world.service.indexer.check()
    await world.catch_up()


async def _deposits(world: ServiceWorld) -> list[Json]:
    await _look(world)
    return list((await world.ok("GET", "/v1/events?type=org.deposit_confirmed&limit=100"))["data"])


@pytest.mark.proves("event org.deposit_confirmed", "Funded(org_balance_remaining)")
async def test_transfer_into_the_reserve_is_reported_and_can_be_allocated(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}/fund"
    before = (await world.ok("POST", path, {"amount": "1", "currency": "USDC"}))["org_balance_remaining"]
    known = {one["event_id"] for one in await _deposits(world)}
    depositor = await _depositor(world, 12_345_678)

    await _transfer(world, depositor, world.build.reserve_tokens, 12_345_678)

    [told] = [one for one in await _deposits(world) if one["event_id"] not in known]
    assert (told["amount"], told["severity"]) == ("12.345678", "info")
    assert told["tx_signature"] in await world.signatures(str(depositor.pubkey()))
    assert isinstance(told["on_chain_slot"], int)
    after = (await world.ok("POST", path, {"amount": "1", "currency": "USDC"}))["org_balance_remaining"]
    assert parse_usdc(after) == parse_usdc(before) + 12_345_678 - 1_000_000


@pytest.mark.proves("Wallet(usdc_balance)")
async def test_transfer_into_a_vault_shows_in_its_balance_and_can_be_spent(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    vault = Pubkey.from_string(wallet["chain_address"])
    depositor = await _depositor(world, 3_000_000)
    known = len(await _deposits(world))

    await _transfer(world, depositor, world.service.addresses.token_account(vault), 2_500_000)

    await _look(world)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    assert (await world.ok("GET", path))["usdc_balance"] == "2.50"
    assert (await world.pay(wallet, await world.payee(), "2.5")).json()["status"] == "confirmed"
    emptied = await world.ok("GET", path)
    assert (emptied["usdc_balance"], emptied["status"]) == ("0.00", "unfunded")
    assert len(await _deposits(world)) == known
