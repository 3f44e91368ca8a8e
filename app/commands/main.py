"""The entry point of the `agent-vault` command line."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

#: Module and name of each command. A module is imported only when its command is called. Importing the whole service
#: takes seconds, and most commands need little of it, especially `sign` and `verify`, which run on other machines.
_COMMANDS = {
    "audit": "audit:audit",
    "backup": "backup:backup",
    "clock": "clock:clock",
    "db": "database:database",
    "demo": "serve:demo",
    "faucet": "faucet:faucet",
    "holes": "holes:holes",
    "keeper": "keeper:keeper",
    "keys": "key:keys",
    "localnet": "serve:localnet",
    "mcp": "mcp:mcp",
    "orgs": "org:orgs",
    "people": "people:people",
    "rebuild": "rebuild:rebuild",
    "restore": "backup:restore",
    "roles": "role:roles",
    "serve": "serve:serve",
    "sign": "sign:sign",
    "verify": "verify:verify_export",
}


class _Commands(click.Group):
    """Imports each command only when it is called. Prints users' errors in one line, without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        found: click.Command = getattr(import_module(f"app.commands.{module}"), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        width = formatter.width - 6 - max(map(len, _COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _described(name).get_short_help_str(width)) for name in sorted(_COMMANDS)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from app.commands.command_errors import explained  # noqa: PLC0415 - help does not need it

            if (line := explained(error)) is None:
                raise
            raise click.ClickException(line) from None


def _described(name: str) -> click.Command:
    """Return a substitute for a command, with its help only. Reads the docstring without importing the module."""
    module, _, function = _COMMANDS[name].partition(":")
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    (found,) = [one for one in ast.parse(source).body if getattr(one, "name", None) == function]
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    return click.Command(name, help=ast.get_docstring(found))


@click.group(cls=_Commands)
@click.version_option(package_name="agent-vault")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True
)
def main(log_level: str) -> None:
    """Run vaults from which AI agents pay USDC, guarded by an on-chain program."""
    from app.core import logs  # noqa: PLC0415 - help does not need it

    logs.configure(log_level, sys.stderr)
