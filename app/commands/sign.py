"""`agent-vault sign`: shows and signs a transaction of the service, on the machine with the authority's key."""

import asyncio
import base64
import json
from binascii import Error as BinasciiError
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAMS
from app.chain.client import ChainClient
from app.chain.nonces import NonceAccount
from app.chain.transport import HttpTransport
from app.core.signers import read_key, write_secret
from app.core.text import plain
from app.remote_signer.claims import ClaimedAccounts, proved_claims, unproved_claims, unproved_owners
from app.remote_signer.facts import facts
from app.remote_signer.inspection import Inspected, UnsafeTransactionError, inspect
from idl.codec import Codec, load

_MAX_FILE = 1 << 20


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--keypair", "key_file", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The authority's key."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file for the signed transaction.  [default: standard output]",
)
@click.option("--rpc-url", help="Node from which to read the old values.  [default: the file's claims]")
@click.option("--program-id", help="Address of the trusted program.  [default: this version's]")
@click.option(
    "--accept-unproved",
    "accepted",
    metavar="ADDRESS",
    multiple=True,
    help="Full address of a token account to accept without a proved owner. May be repeated.",
)
@click.option("--yes", is_flag=True, help="Sign without confirmation.")
def sign(
    *,
    file: Path,
    key_file: Path,
    out: Path | None,
    rpc_url: str | None,
    program_id: str | None,
    accepted: tuple[str, ...],
    yes: bool,
) -> None:
    """Show the changes of the transaction in FILE and sign it.

    FILE is the response to a request with `?sign=offline`, or was written by a command with --offline. The command
    first shows the claims of FILE or of the node, then the facts proved by the transaction's own bytes. It refuses
    foreign instructions. It also refuses token accounts without a proved owner, unless --accept-unproved names them.
    The body for `POST /v1/signed-transactions` is written to --out or to standard output.
    """
    codec = _codec(program_id)
    key = read_key(key_file)
    raw, accounts = _content(file)
    try:
        found = inspect(raw, key.pubkey(), codec)
    except UnsafeTransactionError as error:
        raise click.ClickException(plain(f"{file} is not signed: {error}")) from None
    source = "the file" if rpc_url is None else rpc_url
    if rpc_url is not None:
        accounts = asyncio.run(_read(rpc_url, found, codec))
    known = ClaimedAccounts(accounts, codec)
    _show(f"Claims of {source}, proved by the signed bytes:", proved_claims(found, known), "  proved claim: ")
    _show(f"Claims of {source}, not proved:", unproved_claims(found, known), "  claim: ")
    _show("Facts, from the signed bytes alone:", facts(found), "  ")
    for place in unproved_owners(found, known):
        if str(place) not in accepted:
            unproved = (
                f"{file} is not signed: the owner of the token account {place} is not proved. If you know it from"
            )
            raise click.ClickException(plain(f"{unproved} another source, repeat with --accept-unproved {place}"))
    if not yes:
        click.confirm(f"Sign with {key.pubkey()}?", abort=True, err=True)
    signed = found.signed_with(key.sign_message(found.transaction.message))
    text = json.dumps({"transaction": base64.b64encode(signed).decode()})
    if out is None:
        click.echo(text)
        return
    if out.exists():
        raise click.ClickException(f"{out} already exists; name a new file")
    write_secret(out, text + "\n")


def _show(heading: str, lines: Iterable[str], mark: str) -> None:
    """Print lines under a heading. Callers print the facts last, so that claims cannot scroll the facts away."""
    given = [mark + line for line in lines]
    for line in [heading, *given] if given else ():
        click.echo(plain(line), err=True)


def _codec(program_id: str | None) -> Codec:
    try:
        return load() if program_id is None else load(Pubkey.from_string(program_id))
    except ValueError:
        raise click.ClickException("--program-id: must be an address in base58") from None


def _content(file: Path) -> tuple[bytes, Mapping[Pubkey, bytes]]:
    """Return the transaction in a file, and the account data that the file claims."""
    try:
        with file.open("rb") as source:
            text = source.read(_MAX_FILE + 1)
        found: Any = json.loads(text) if len(text) <= _MAX_FILE else None
        raw = base64.b64decode(found["transaction"], validate=True)
        claimed = {
            Pubkey.from_string(address): base64.b64decode(data, validate=True)
            for address, data in found.get("accounts", {}).items()
        }
    except (BinasciiError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise click.ClickException(f"{file} is not the response to a request with ?sign=offline") from None
    return raw, claimed


async def _read(rpc_url: str, found: Inspected, codec: Codec) -> Mapping[Pubkey, bytes]:
    """Return the transaction's accounts that belong to the program or to a token program, as read from a node.

    Raises ClickException if the nonce account on this node does not have the transaction's nonce.
    """
    async with aclosing(ChainClient(HttpTransport(rpc_url), program_id=codec.program_id)) as chain:
        nonce = NonceAccount.of(await chain.account(found.nonce_account))
        if nonce is None or nonce.authority != found.signer or nonce.nonce != found.transaction.blockhash:
            raise click.ClickException(
                f"the transaction is not signed: {rpc_url} does not have its nonce. The nonce was advanced, or the "
                "node is stale or on another chain"
            )
        accounts = await chain.accounts(found.transaction.keys)
        return {
            key: account.data
            for key, account in zip(found.transaction.keys, accounts, strict=True)
            if account is not None and account.owner in {codec.program_id, *TOKEN_PROGRAMS}
        }
