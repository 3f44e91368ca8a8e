"""`agent-vault verify`: checks an export against the chain, independently of the service."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import click

from app.chain.addresses import parse_address
from app.chain.transport import HttpTransport
from app.commands.command_errors import EXPECTED
from app.core.text import plain
from app.verifier.history import IncompleteError
from app.verifier.verify import VerificationReport, verify


class _UndecidedError(click.ClickException):
    """The verification could not reach a result."""

    exit_code = 2


@click.command("verify")
@click.argument("export", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rpc-url", required=True, help="JSON-RPC address of a node with the whole history.")
@click.option("--program-id", help="Address of the trusted program.  [default: this version's]")
@click.option("--manifest", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="An accounting file's.")
def verify_export(export: Path, rpc_url: str, program_id: str | None, manifest: Path | None) -> None:
    """Check an exported CSV or JSON file against the chain.

    An accounting file needs its manifest too.

    The check does not use the service. Exits with 0 if the file matches, with 1 if a row differs, is missing or was
    added, and with 2 if the result cannot be determined. Rows without a transaction on the chain, such as blocked
    payments, are only listed.
    """
    if (program := parse_address(program_id or "")) is None and program_id is not None:
        raise _UndecidedError("--program-id: must be an address in base58")

    async def run() -> VerificationReport:
        async with aclosing(HttpTransport(rpc_url)) as transport:
            return await verify(export, transport, program, manifest)

    try:
        report = asyncio.run(run())
    except (*EXPECTED, IncompleteError, ValueError) as error:
        raise _UndecidedError(str(error)) from None
    for line in report.lines():
        click.echo(plain(line))
    sys.exit(1 if report.problems else 0)
