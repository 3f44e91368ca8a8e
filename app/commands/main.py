"""The command line `agent-vault`."""

import sys
from importlib import import_module
from typing import Any

import click
from pydantic import ValidationError

from app.commands.command_errors import EXPECTED
from app.core import logs
from app.core.errors import is_storage_error

#: Where each command is. It is loaded when it is called: the whole service takes seconds, and most commands need
#: little of it, least of all `sign` and `verify`, which run on other machines.
_COMMANDS = {
    "audit": "audit.audit",
    "backup": "backup.backup",
    "db": "database.database",
    "demo": "serve.demo",
    "faucet": "faucet.faucet",
    "holes": "holes.holes",
    "keeper": "keeper.keeper",
    "keys": "key.keys",
    "localnet": "serve.localnet",
    "mcp": "mcp.mcp",
    "orgs": "org.orgs",
    "people": "people.people",
    "rebuild": "rebuild.rebuild",
    "restore": "backup.restore",
    "roles": "role.roles",
    "serve": "serve.serve",
    "sign": "sign.sign",
    "verify": "verify.verify_export",
}


class _Commands(click.Group):
    """Loads a command when it is called, and prints errors that users can cause in one line, without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(".")
        found: click.Command = getattr(import_module(f"app.commands.{module}"), name)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValidationError as error:
            raise click.ClickException("; ".join(map(_fault, error.errors()))) from None
        except EXPECTED as error:
            raise click.ClickException(str(error)) from None
        except Exception as error:
            if not is_storage_error(error):
                raise
            reason = getattr(error, "orig", None) or error
            raise click.ClickException(f"the data cannot be read or written: {reason}") from None


def _fault(found: Any) -> str:
    """Return what is wrong with a setting, without the words of the library that checks it."""
    name, reason = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ")
    return f"{name}: {reason}" if name else reason


@click.group(cls=_Commands)
@click.version_option(package_name="agent-vault")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True
)
def main(log_level: str) -> None:
    """Vaults from which AI agents pay USDC, guarded by an on-chain program."""
    logs.configure(log_level, sys.stderr)
