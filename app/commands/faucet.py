"""`agent-vault faucet`: test money on the embedded chain."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import click
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.state import Mint, TokenAccount
from spl.token.instructions import (
    MintToParams,
    create_idempotent_associated_token_account,
    get_associated_token_address,
    mint_to,
)

from app.chain.addresses import TOKEN_PROGRAM
from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable
from app.chain.identity import SameChain, WrongChainError, chain_name
from app.chain.nodes import transport_of
from app.chain.transactions import sign
from app.commands.command_options import address_argument, data_folder, rpc_url, settings_of, usdc_argument
from app.core.money import format_usdc
from app.core.paths import ConfigurationError
from app.core.settings import Settings
from app.localnet import genesis
from app.localnet.genesis import USDC_MINT
from app.server.data_folder import folder_chain, node_name, sidecar_settings
from app.submission.plan import with_random_compute_limit

_PATIENCE = 30.0


@click.group()
def faucet() -> None:
    """Get free test money on the embedded chain."""


@faucet.command("usdc")
@click.argument("address", callback=address_argument)
@click.argument("amount", callback=usdc_argument)
@data_folder
@rpc_url
def faucet_usdc(address: Pubkey, amount: int, **given: Any) -> None:
    """Mint AMOUNT of USDC on the data folder's embedded chain, which must be running.

    ADDRESS is a token account, such as an organisation's reserve, or an owner. An owner's token account is created if
    needed.
    """
    settings = sidecar_settings(settings_of(**given))
    tokens, signature = asyncio.run(_mint(settings, address, amount))
    click.echo(f"{format_usdc(amount)} USDC minted into {tokens}: {signature}")


async def _mint(settings: Settings, address: Pubkey, amount: int) -> tuple[Pubkey, str]:
    """Mint with the faucet's key. Return the token account and the transaction's signature."""
    paths = settings.paths()
    place = node_name(settings)
    if not paths.localnet.exists():
        raise ConfigurationError(f"{paths.root} has no embedded chain; name its folder with --data-dir")
    key = genesis.faucet_key(paths.localnet, create=False)
    known = folder_chain(settings)
    expected = known.identity.genesis_hash if known else None
    node = SameChain(transport_of(settings.rpc_urls(), expected), expected)
    async with aclosing(ChainClient(node, program_id=Pubkey.default())) as chain:
        try:
            genesis_hash = await node.genesis_hash()
        except WrongChainError as error:
            raise ConfigurationError(
                f"{place}: {error}, not to {chain_name(str(expected))} of {paths.root}; omit --rpc-url, or name "
                "that chain's folder with --data-dir"
            ) from None
        except ChainUnavailable as error:
            raise ConfigurationError(
                f"no usable response from {place} ({error}); run `agent-vault serve --data-dir {paths.root}` first"
            ) from None
        mint, found = await chain.accounts([USDC_MINT, address])
        if mint is None or Mint.from_bytes(mint.data).mint_authority != key.pubkey():
            raise ConfigurationError(
                f"{place} belongs to {chain_name(genesis_hash)}; {paths.root} has no faucet for this chain"
            )
        is_account = found is not None and found.owner == TOKEN_PROGRAM
        tokens = address if is_account else get_associated_token_address(address, USDC_MINT)
        instructions = [mint_to(MintToParams(TOKEN_PROGRAM, USDC_MINT, tokens, key.pubkey(), amount))]
        if found is not None and is_account:
            _require_usdc(address, found.data)
        else:
            instructions.insert(0, create_idempotent_associated_token_account(key.pubkey(), address, USDC_MINT))
        return tokens, await _land(chain, instructions, key)


def _require_usdc(address: Pubkey, data: bytes) -> None:
    try:
        mint = TokenAccount.from_bytes(data).mint
    except ValueError:
        mint = None
    if mint != USDC_MINT:
        raise ConfigurationError(f"{address} is not a USDC token account (mint {USDC_MINT})")


async def _land(chain: ChainClient, instructions: Sequence[Instruction], key: Keypair) -> str:
    blockhash = await chain.blockhash()
    signed = sign(with_random_compute_limit(instructions), payer=key, blockhash=blockhash.hash)
    simulation = await chain.simulate(signed.raw)
    if simulation.err is not None:
        raise ConfigurationError(f"the chain refuses to mint: {simulation.err}")
    await chain.send(signed.raw)
    status = await chain.confirm(signed.signature, timeout=_PATIENCE)
    if status is None or status.err is not None:
        raise ConfigurationError(f"the transaction {signed.signature} was not confirmed; look it up before you retry")
    return signed.signature
