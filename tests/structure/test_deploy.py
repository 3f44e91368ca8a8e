"""Checks the files of `deploy/` as far as possible without a container engine."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context

from app.commands.main import main
from app.core.settings import Settings
from tests.nodes.nodes import CONFIGURATION, haproxy
from tests.support.needs import skip_or_fail

_DEPLOY = CONFIGURATION.parent
_ROOT = _DEPLOY.parent
_UNIT = _DEPLOY / "agent-vault@.service"


@pytest.fixture(name="services")
def _services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())["services"]
    return found


@pytest.mark.parametrize("count", range(6))
def test_proxy_takes_one_to_five_nodes(count: int) -> None:
    nodes = {f"NODE_{number}": f"127.0.0.1:{8400 + number}" for number in range(1, count + 1)}
    checked = subprocess.run(
        [haproxy(), "-c", "-f", str(CONFIGURATION)],
        env={"PATH": os.environ["PATH"], "LISTEN": "127.0.0.1:8400", **nodes},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode == 0) == (count > 0), checked.stderr


def test_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        skip_or_fail("there is no systemd-analyze: install Debian's systemd")
    text = _UNIT.read_text()
    assert "/opt/agent-vault/bin/agent-vault serve" in text
    # The program is not installed at the unit's path, so the unit gets the path of an existing program.
    (tmp_path / _UNIT.name).write_text(text.replace("/opt/agent-vault/bin/agent-vault", str(shutil.which("true"))))
    unit = str(tmp_path / _UNIT.name.replace("@", "@one"))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_settings_that_are_named_exist() -> None:
    files = (_DEPLOY / "compose.yaml", _DEPLOY / "Containerfile", _UNIT, CONFIGURATION)
    named = {name for file in files for name in re.findall(r"AGENT_VAULT_([A-Z0-9_]+)", file.read_text())}
    assert named - {name.upper() for name in Settings.model_fields} == set()
    assert "KEYS_DIR" in named


def test_compose_runs_commands_and_files_that_exist(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "chain", "setup", "api1", "api2", "works", "haproxy"}
    volumes = set(yaml.safe_load((_DEPLOY / "compose.yaml").read_text())["volumes"])
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        for source in (one.split(":")[0] for one in service.get("volumes", ())):
            assert source in volumes or (_DEPLOY / source).is_file(), source
        if service["image"] == "agent-vault" and name != "setup":
            context = Context(main)
            command = main.get_command(context, service["command"][0])
            assert command is not None
            command.make_context("", service["command"][1:], parent=context)
            assert Settings(roles=service["command"][2] if name != "chain" else "api").roles


def test_every_container_of_the_service_has_few_rights(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name != "postgres":  # this image itself switches to an account without rights
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
    text = (_DEPLOY / "Containerfile").read_text()
    assert text.rindex("\nUSER 10001:10001\n") > text.rindex("\nFROM ")
    [base] = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert re.search(r":\d+\.\d+\.\d+-", base)
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all((_ROOT / one).exists() for one in source.split()), source


def test_nodes_share_the_keys_for_reading_only(services: dict[str, Any]) -> None:
    for name in ("api1", "api2", "works"):
        assert "keys:/keys:ro" in services[name]["volumes"]
        assert services[name]["environment"]["AGENT_VAULT_KEYS_DIR"] == "/keys"
        assert services[name]["environment"]["AGENT_VAULT_RPC_URL"]
    assert "AGENT_VAULT_KEYS_DIR" not in services["setup"]["environment"]
    roles = [services[name]["command"][-1] for name in ("api1", "api2", "works")]
    assert roles == ["api", "api", "indexer,worker"]
