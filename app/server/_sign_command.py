"""`agent-vault sign`: shows and signs a transaction that the service made, where the authority's key is."""

import asyncio
import base64
import json
from binascii import Error as BinasciiError
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAM
from app.chain.client import ChainClient
from app.chain.nonces import NonceAccount
from app.chain.transport import HttpTransport
from app.core.signers import read_key, write_secret
from app.signer.changes import Known, lines
from app.signer.inspection import Inspected, UnsafeTransactionError, inspect
from idl.codec import Codec, load

_MAX_FILE = 1 << 20


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--keypair", "key_file", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The authority's key."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="New file for the signed transaction.")
@click.option("--rpc-url", help="Node that is asked for the old values.  [default: the file's, which are a claim]")
@click.option("--program-id", help="Address of the trusted program.  [default: this version's]")
@click.option("--yes", is_flag=True, help="Sign without asking.")
def sign(
    *, file: Path, key_file: Path, out: Path | None, rpc_url: str | None, program_id: str | None, yes: bool
) -> None:
    """Show what the transaction in FILE changes, and sign it.

    FILE is an answer to a request with `?sign=offline`. Shows what the transaction's own bytes say, and refuses what
    such a transaction never contains. What is written, to --out or to the standard output, is the body for
    `POST /v1/signed-transactions`.
    """
    codec = _codec(program_id)
    key = read_key(key_file)
    raw, claimed = _content(file)
    try:
        found = inspect(raw, key.pubkey(), codec)
    except UnsafeTransactionError as error:
        raise click.ClickException(f"{file} is not signed: {error}") from None
    if rpc_url is None:
        accounts, source = claimed, "Old values are what the service says; --rpc-url asks a node instead."
    else:
        accounts, source = asyncio.run(_read(rpc_url, found, codec)), f"Old values are those at {rpc_url}."
    for line in (*lines(found.calls, Known(accounts, codec)), *_frame(found), source):
        # The file may come from anybody: nothing in it may control the terminal.
        click.echo("".join(character if character.isprintable() else "?" for character in line), err=True)
    if not yes:
        click.confirm(f"Sign with {key.pubkey()}?", abort=True, err=True)
    signed = found.signed_with(key.sign_message(found.content))
    text = json.dumps({"transaction": base64.b64encode(signed).decode()})
    if out is None:
        click.echo(text)
        return
    if out.exists():
        raise click.ClickException(f"{out} exists")
    write_secret(out, text + "\n")


def _codec(program_id: str | None) -> Codec:
    try:
        return load() if program_id is None else load(Pubkey.from_string(program_id))
    except ValueError:
        raise click.ClickException("--program-id: must be an address in base58") from None


def _content(file: Path) -> tuple[bytes, Mapping[Pubkey, bytes]]:
    """Return the transaction in a file, and the accounts that came with it."""
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
        raise click.ClickException(f"{file} is no answer to a request with ?sign=offline") from None
    return raw, claimed


async def _read(rpc_url: str, found: Inspected, codec: Codec) -> Mapping[Pubkey, bytes]:
    """Return the accounts that the transaction names, and the allowlists of its policies, as a node has them."""
    async with aclosing(ChainClient(HttpTransport(rpc_url), program_id=codec.program_id)) as chain:
        nonce = NonceAccount.of(await chain.account(found.nonce_account))
        if nonce is None or nonce.authority != found.signer or nonce.nonce != found.nonce:
            raise click.ClickException("it is not signed: its nonce was advanced, so it cannot land any more")
        keys = found.transaction.keys
        accounts = await chain.accounts(keys)
        return {
            key: account.data
            for key, account in zip(keys, accounts, strict=True)
            if account is not None and account.owner in (codec.program_id, TOKEN_PROGRAM)
        }


def _frame(found: Inspected) -> list[str]:
    return [
        *(f"Memo: {memo}" for memo in found.memos),
        f"Fee and rent are paid by {found.fee_payer}",
        *(f"Also signed by {other}" for other in found.others),
        f"Valid until the nonce of {found.nonce_account} is advanced",
    ]
