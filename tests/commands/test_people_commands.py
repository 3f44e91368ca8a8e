"""`agent-vault people`, against a data folder without a running service."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from app.commands.main import main
from app.people.sessions import digest
from app.store.people import invitation_by_digest
from tests.support.service_world import ServiceWorld


@pytest.mark.asyncio(loop_scope="module")
async def test_invitation_link_of_the_command_line_can_be_used(own_world: ServiceWorld, tmp_path: Path) -> None:
    options = ["--data-dir", str(tmp_path)]
    done = CliRunner().invoke(main, ["people", "invite", "test", "--role", "viewer", "--name", "Ada", *options])
    assert done.exit_code == 0, done.output
    address, _, token = done.output.strip().partition("#")
    assert address == "http://localhost:8402/dashboard/join"
    found = own_world.service.db.read_now(lambda conn: invitation_by_digest(conn, digest(token)))
    assert found is not None
    assert (found.org, found.role, found.name) == (own_world.org, "viewer", "Ada")
    assert CliRunner().invoke(main, ["people", "list", "test", *options]).output == ""
    assert CliRunner().invoke(main, ["people", "invite", "nobody", *options]).exit_code == 1


def test_serve_without_https_elsewhere_is_refused_in_one_line(tmp_path: Path) -> None:
    refused = CliRunner().invoke(
        main,
        ["serve", "--data-dir", str(tmp_path / "new")],
        env={"AGENT_VAULT_PUBLIC_URL": "http://pay.example.com"},
    )
    assert refused.exit_code == 1
    assert refused.output.count("\n") == 1
    assert "needs https" in refused.output
    assert not (tmp_path / "new").exists()
