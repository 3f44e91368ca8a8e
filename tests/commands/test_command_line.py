"""The command line: `serve` as users run it, its restart after a kill, and the other commands."""

import contextlib
import json
import math
import os
import pty
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from solders.keypair import Keypair

from app.chain.addresses import TOKEN_PROGRAM
from app.commands.main import main
from app.core import file_lock
from app.core.settings import Settings
from app.server.bootstrap import prepare
from app.server.data_folder import sidecar_settings
from tests.support.processes import free_ports, running
from tests.support.warm import COMMAND_LINE

_COMMAND = [sys.executable, "-c", "from app.commands.main import main; main()"]
_PATIENCE = 120.0


@dataclass
class Serving:
    """A running `agent-vault serve`."""

    process: "subprocess.Popen[str]"
    said: str
    port: int
    rpc_port: int
    data: Path

    @property
    def curl(self) -> str:
        [line] = [line for line in self.said.splitlines() if line.startswith("curl ")]
        return line

    @property
    def key(self) -> str:
        return (self.data / "admin-api-key").read_text().strip()

    def get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.key}"}
        response = httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        assert response.status_code == 200, response.text
        return response.json()

    def rpc(self, method: str, *params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return httpx.post(f"http://127.0.0.1:{self.rpc_port}", json=body).json()["result"]

    def pay(self) -> Any:
        """Paste the printed line into a shell."""
        done = subprocess.run(["sh", "-c", self.curl], capture_output=True, text=True, check=True, timeout=_PATIENCE)
        return json.loads(done.stdout)


@contextlib.contextmanager
def _serve(data: Path, *options: str) -> Iterator[Serving]:
    port, rpc_port = free_ports()
    command = [*_COMMAND, "serve", "--data-dir", str(data), "--port", str(port), "--localnet-port", str(rpc_port)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=data
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if line.startswith("curl "):
                    break
            assert process.poll() is None, said
            assert "curl " in said
            yield Serving(process, said, port, rpc_port, data)
        finally:
            process.kill()


def test_quickstart_prints_a_command_that_makes_a_payment(tmp_path: Path) -> None:
    with _serve(tmp_path) as serving:
        # Given what the quickstart printed and stored
        assert f"Admin API key, stored in {tmp_path / 'admin-api-key'}\n" in serving.said
        assert serving.key not in serving.said
        assert (tmp_path / "admin-api-key").stat().st_mode & 0o777 == 0o600
        for name in ("authority", "operator", "arbiter", "fee-payer"):
            assert (tmp_path / "keys" / f"{name}.json").stat().st_mode & 0o777 == 0o600

        # When the line is pasted into a shell
        paid = serving.pay()

        # Then the payment is settled and the chain, over its socket, confirms it
        assert paid["status"] == "confirmed", paid
        landed = serving.rpc("getTransaction", paid["tx_signature"], {"commitment": "confirmed"})
        assert landed["meta"]["err"] is None
        [wallet] = [one for one in serving.get("/v1/wallets")["data"] if one["agent_id"] == "demo-agent"]
        assert wallet["usdc_balance"] == "98.75"
        assert httpx.get(f"http://127.0.0.1:{serving.port}/docs").status_code == 200

        # And the gauges are read, in the background
        lamports, deadline = math.nan, time.monotonic() + _PATIENCE
        while math.isnan(lamports) and time.monotonic() < deadline:
            shown = httpx.get(f"http://127.0.0.1:{serving.port}/metrics").text.splitlines()
            [line] = [line for line in shown if line.startswith("agent_vault_fee_payer_lamports ")]
            lamports = float(line.split()[1])
        assert lamports > 0

        # And it stops when asked
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(_PATIENCE) == 0


def test_admin_key_is_shown_on_a_terminal(tmp_path: Path) -> None:
    terminal, output = pty.openpty()
    port, rpc_port = free_ports()
    options = ["serve", "--data-dir", str(tmp_path), "--port", str(port), "--localnet-port", str(rpc_port)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen([*_COMMAND, *options], stdout=output, stderr=output, env=environment) as process:
        try:
            said, deadline = b"", time.monotonic() + _PATIENCE
            while b"curl " not in said and time.monotonic() < deadline:
                said += os.read(terminal, 65_536)
        finally:
            process.kill()
            os.close(output)
            os.close(terminal)

    key = (tmp_path / "admin-api-key").read_text().strip()
    assert f"Admin API key, shown only once and stored in {tmp_path / 'admin-api-key'}: {key}" in said.decode()


def test_databases_and_all_that_is_copied_from_them_are_private(tmp_path: Path) -> None:
    """Files of earlier versions too, whose mode the user's umask set."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    data.mkdir()
    with _serve(data):
        _private(data)
    for path in _files(data):
        if ".db" in path.name:
            path.chmod(0o644)
    with _serve(data) as serving:
        serving.pay()
        _private(data)
        runner = CliRunner()
        assert runner.invoke(main, ["backup", str(backup), "--data-dir", str(data)]).exit_code == 0
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    restored = tmp_path / "restored"
    verified = ("--secret-file", str(data / "keys" / "service-secret"))
    assert runner.invoke(main, ["restore", str(backup), "--data-dir", str(restored), *verified]).exit_code == 0
    _private(restored)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _private(folder: Path) -> None:
    """Require mode 600 of every file with content. Locks and marks are empty."""
    found = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in _files(folder) if path.stat().st_size}
    assert {name for name, mode in found.items() if mode != "0o600"} == set()
    assert "agent-vault.db" in found


def test_restart_after_a_kill_continues_where_it_was(tmp_path: Path) -> None:
    with _serve(tmp_path) as first:
        key, paid = first.key, first.pay()
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(_PATIENCE)

    with _serve(tmp_path) as second:
        assert second.key == key
        assert key not in second.said
        assert second.get(f"/v1/payments/{paid['tx_id']}")["status"] == "confirmed"
        assert second.rpc("getTransaction", paid["tx_signature"], {"commitment": "confirmed"})["meta"]["err"] is None
        assert second.pay()["status"] == "confirmed"
        [wallet] = [one for one in second.get("/v1/wallets")["data"] if one["agent_id"] == "demo-agent"]
        assert wallet["usdc_balance"] == "97.50"
        # A second service cannot run on the same data.
        port, rpc_port = free_ports()
        options = ["--data-dir", str(tmp_path), "--port", str(port), "--localnet-port", str(rpc_port)]
        refused = CliRunner().invoke(main, ["serve", *options])
        assert refused.exit_code == 1
        assert refused.output.startswith("Error: ")


def test_keys_are_made_listed_and_revoked_while_the_service_runs(tmp_path: Path) -> None:
    with _serve(tmp_path) as serving:
        run = CliRunner()
        folder = ["--data-dir", str(tmp_path)]
        [wallet] = [one for one in serving.get("/v1/wallets")["data"] if one["agent_id"] == "demo-agent"]
        made = run.invoke(main, ["keys", "create", *folder, "--role", "agent", "--wallet", wallet["wallet_id"]])
        assert made.exit_code == 0, made.output
        key = made.output.strip()
        assert re.fullmatch(r"avk_test_[0-9A-Za-z]{36}", key)

        def status() -> int:
            url = f"http://127.0.0.1:{serving.port}/v1/wallets"
            return httpx.get(url, headers={"Authorization": f"Bearer {key}"}).status_code

        assert status() == 200
        listed = run.invoke(main, ["keys", "list", *folder]).output
        assert key not in listed
        [line] = [line for line in listed.splitlines() if key[-4:] in line]
        key_id = line.split()[0]
        assert run.invoke(main, ["keys", "revoke", key_id, *folder]).exit_code == 0
        deadline = time.monotonic() + 5
        while status() == 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert status() == 401
        assert run.invoke(main, ["keys", "revoke", key_id, *folder]).exit_code == 1


def test_organisation_made_while_the_service_runs_is_served(tmp_path: Path) -> None:
    with _serve(tmp_path) as serving:
        # The folder knows the chain's port.
        made = CliRunner().invoke(main, ["orgs", "create", "second", "--data-dir", str(tmp_path)])
        assert made.exit_code == 0, made.output
        key = made.output.rpartition(" ")[2].strip()
        url, headers = f"http://127.0.0.1:{serving.port}/v1/policies", {"Authorization": f"Bearer {key}"}
        deadline = time.monotonic() + 10
        while not (found := httpx.get(url, headers=headers).json()["data"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [one["policy_id"] for one in found] == [
            "pol_conservative",
            "pol_moderate",
            "pol_permissive",
            "pol_locked",
        ]


def test_command_beside_a_service_leaves_its_work_to_it(tmp_path: Path) -> None:
    settings = sidecar_settings(
        Settings(data_dir=tmp_path, smtp_host="mail.example.com", smtp_from="vault@example.com")
    )

    assert (settings.webhooks, settings.alerts, settings.exports) == (False, False, False)
    assert settings.rpc_url == "http://127.0.0.1:8899"


def _said_without_room(*arguments: str) -> str:
    """What a command says that cannot write a byte to any file, as on a full disk."""

    def without_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    ended = subprocess.run(
        [*_COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
        env=environment,
        preexec_fn=without_room,
    )
    assert ended.returncode == 1
    return ended.stderr


def test_rebuilding_a_stopped_service_leaves_everything_as_it_was(tmp_path: Path) -> None:
    def shown(serving: Serving) -> list[Any]:
        lists = [serving.get(f"/v1/{name}")["data"] for name in ("wallets", "policies", "transactions", "events")]
        # Links to the explorer name the port of the embedded chain, which differs.
        return [[{k: v for k, v in row.items() if not k.startswith("explorer")} for row in rows] for rows in lists]

    with _serve(tmp_path) as serving:
        serving.pay()
        before = shown(serving)
        refused = CliRunner().invoke(main, ["rebuild", "--data-dir", str(tmp_path)])
        assert refused.exit_code == 1
        assert "stop it first" in refused.output
    for command in (["rebuild"], ["keys", "create", "--role", "viewer"]):
        assert re.fullmatch(r"Error: .*cannot be .*\n", _said_without_room(*command, "--data-dir", str(tmp_path)))

    made = CliRunner().invoke(main, ["rebuild", "--data-dir", str(tmp_path)])

    assert made.exit_code == 0, made.output
    with _serve(tmp_path) as serving:
        assert shown(serving) == before
        assert serving.pay()["status"] == "confirmed"


def test_keeper_takes_no_export_from_the_service_but_refuses_rebuild(tmp_path: Path) -> None:
    command = [*_COMMAND, "keeper", "--data-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONUNBUFFERED": "1"}
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(contextlib.ExitStack())
        serving = service.enter_context(_serve(tmp_path))
        keeper = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
        )
        stack.callback(keeper.kill)
        assert keeper.stdout is not None
        assert keeper.stdout.readline().startswith("Keeper at work")

        url = f"http://127.0.0.1:{serving.port}/v1/transactions/export"
        headers = {"Authorization": f"Bearer {serving.key}"}
        export = httpx.post(url, headers=headers, json={"format": "csv"}).json()["export_id"]
        deadline = time.monotonic() + 10
        while (found := serving.get(f"/v1/transactions/exports/{export}"))["status"] == "processing":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found["status"] == "ready"
        assert file_lock.take(tmp_path / "sidecars.lock") is None

        # When only the keeper is left, it alone refuses the rebuild
        service.close()
        refused = CliRunner().invoke(main, ["rebuild", "--data-dir", str(tmp_path)])
        assert (refused.exit_code, "stop it first" in refused.output) == (1, True)


def test_rebuilding_needs_the_data_of_a_service(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["rebuild", "--data-dir", str(tmp_path / "mistyped")])

    assert refused.exit_code == 1
    assert refused.output.startswith("Error: ")
    assert not list(tmp_path.iterdir())


def test_demo_shows_every_step() -> None:
    shown = CliRunner().invoke(main, ["demo"])

    assert shown.exit_code == 0, shown.output
    for part in (
        "/v1/policies -> 200",
        "/v1/wallets -> 200",
        "/v1/payments -> 200",
        "/v1/payments -> 402",
        "rule max_per_tx: limit 5.00, attempted 6.00",
        "rule max_per_day: limit 8.00, attempted 8.50",
        "wallet_frozen",
    ):
        assert part in shown.output


def test_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with _serve(tmp_path):
        pass
    (tmp_path / "keys" / "operator.json").chmod(0o640)

    refused = CliRunner().invoke(main, ["serve", "--data-dir", str(tmp_path), "--port", "1", "--localnet-port", "0"])
    assert refused.exit_code != 0
    port, rpc_port = free_ports()
    options = ["--data-dir", str(tmp_path), "--port", str(port), "--localnet-port", str(rpc_port)]
    refused = CliRunner().invoke(main, ["serve", *options])

    assert refused.exit_code == 1
    assert "chmod 600" in refused.output


@pytest.mark.parametrize(
    "command", [[], ["serve"], ["demo"], ["localnet"], ["orgs", "create"], ["keys", "create"], ["rebuild"]]
)
def test_every_command_has_help(command: list[str]) -> None:
    shown = CliRunner().invoke(main, [*command, "--help"])

    assert shown.exit_code == 0
    assert "Usage:" in shown.output


def test_data_folder_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)

    prepare(Settings(data_dir=folder))

    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8402"),
        ({"host": "::"}, "http://[::1]:8402"),
        ({"host": "::1"}, "http://[::1]:8402"),
        ({"host": "pay.example.com", "port": 80}, "http://pay.example.com:80"),
        ({"public_url": "https://pay.example.com/"}, "https://pay.example.com"),
    ],
)
def test_links_lead_to_an_address_that_can_be_reached(settings: dict[str, Any], url: str) -> None:
    assert Settings(**settings).base_url() == url


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def _refusal(*arguments: str, exit_code: int = 1) -> str:
    """The last line of a refusal without a traceback."""
    refused = _run(*arguments)
    assert refused.exit_code == exit_code, refused.output
    assert isinstance(refused.exception, SystemExit), refused.exception
    return refused.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--rpc-url", ""), "rpc_url: must begin with http:// or https:// and name a host"),
        (("--roles", "api,boss"), "roles: boss is not a role; the roles are api, indexer, worker"),
        (("AGENT_VAULT_KEYS_DIR", ""), "keys_dir: must name a folder"),
    ],
)
def test_wrong_setting_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], reason: str
) -> None:
    if not options[0].startswith("--"):
        monkeypatch.setenv(*options)
        options = ()
    assert _refusal("serve", "--data-dir", str(tmp_path), *options) == f"Error: {reason}"


@pytest.mark.parametrize(
    ("file", "spoil", "reason"),
    [
        ("service-secret", lambda path: path.write_text("no digits"), "not a service's secret"),
        ("operator.json", lambda path: (path.unlink(), path.mkdir()), "is not a file"),
    ],
)
def test_unusable_file_of_the_keys_is_named(
    tmp_path: Path, file: str, spoil: Callable[[Path], object], reason: str
) -> None:
    with _serve(tmp_path) as serving:
        options = ("--port", str(serving.port), "--localnet-port", str(serving.rpc_port))
    spoil(tmp_path / "keys" / file)
    assert f"{tmp_path / 'keys' / file}: {reason}" in _refusal("serve", "--data-dir", str(tmp_path), *options)


def test_taken_port_is_named_with_the_option_that_changes_it(tmp_path: Path) -> None:
    port, rpc_port = free_ports()
    options = ("--data-dir", str(tmp_path), "--port", str(port), "--localnet-port", str(rpc_port))
    with socket.create_server(("127.0.0.1", port)):
        said = _refusal("serve", *options)
        assert f"port {port} " in said
        assert said.endswith("--port")
    for taken in (rpc_port, rpc_port + 1):
        with socket.create_server(("127.0.0.1", taken)):
            said = _refusal("serve", *options)
            assert f"port {taken} " in said
            assert said.endswith("--localnet-port")
            said = _refusal("localnet", "--data-dir", str(tmp_path), "--port", str(rpc_port))
            assert f"port {taken} " in said
            assert said.endswith("--port")
    assert "--host" in _refusal("serve", *options, "--host", "203.0.113.9")


async def test_embedded_chain_starts_without_the_database_of_the_service(tmp_path: Path) -> None:
    _, port = free_ports()
    options = ("localnet", "--data-dir", str(tmp_path), "--port", str(port))
    unreachable = "postgresql://nobody@127.0.0.1:1/none"

    async with (
        running(COMMAND_LINE, *options, until=b"Embedded chain", AGENT_VAULT_DATABASE_URL=unreachable),
        httpx.AsyncClient() as client,
    ):
        health = await client.get(f"http://127.0.0.1:{port}/health")

    assert health.text == "ok"


def test_second_service_on_a_folder_is_refused_also_with_an_address(tmp_path: Path) -> None:
    with _serve(tmp_path) as serving:
        port, _ = free_ports()
        options = ("--data-dir", str(tmp_path), "--port", str(port))

        said = _refusal("serve", *options, "--rpc-url", f"http://127.0.0.1:{serving.rpc_port}")

        assert f"a service runs on {tmp_path} already" in said
        assert serving.pay()["status"] == "confirmed"


@pytest.mark.parametrize("org_id", ["", "A", "a b", "a/b", "ä", "a" * 65, "a\n"])
def test_organisation_is_not_made_under_another_kind_of_name(tmp_path: Path, org_id: str) -> None:
    folder = tmp_path / "data"
    assert "1 to 64" in _refusal("orgs", "create", "--data-dir", str(folder), "--", org_id)
    assert not folder.exists()


def test_second_organisation_is_listed_funded_and_its_keys_found(tmp_path: Path) -> None:
    folder = ("--data-dir", str(tmp_path))
    with _serve(tmp_path) as serving:
        # Given a second organisation
        made = _run("orgs", "create", "a-" + "9" * 62, *folder)
        assert made.exit_code == 0, made.output
        [reserve] = [line.rpartition(" ")[2] for line in made.output.splitlines() if line.startswith("Deposit")]

        # When the faucet mints into its reserve, twice the same, and for an owner without a token account
        for _ in range(2):
            minted = _run("faucet", "usdc", reserve, "1234.5", *folder)
            assert minted.exit_code == 0, minted.output
            assert minted.output.startswith(f"1234.50 USDC minted into {reserve}: ")
        owner = Keypair().pubkey()
        assert _run("faucet", "usdc", str(owner), "7", *folder).exit_code == 0
        found = serving.rpc(
            "getTokenAccountsByOwner", str(owner), {"programId": str(TOKEN_PROGRAM)}, {"encoding": "jsonParsed"}
        )
        assert found["value"][0]["account"]["data"]["parsed"]["info"]["tokenAmount"]["uiAmountString"] == "7"

        # Then the reserve holds it
        [balance] = [serving.rpc("getTokenAccountBalance", reserve)["value"]["uiAmountString"]]
        assert balance == "2469"

        # And both organisations are listed, and a key is found without naming its organisation
        listed = _run("orgs", "list", *folder).output.splitlines()
        assert [line.split()[0] for line in listed] == ["default", "a-" + "9" * 62]
        assert reserve in listed[1]
        assert "choose an organisation" in _refusal("keys", "list", *folder)
        keys = _run("keys", "list", *folder, "--org", "a-" + "9" * 62).output
        key_id = keys.split()[0]
        assert "no API key" in _refusal("keys", "revoke", key_id, *folder, "--org", "default")
        assert "no API key" in _refusal("keys", "revoke", "key_nothing", *folder)
        assert _run("keys", "rotate", key_id, *folder, "--overlap", "60").exit_code == 0
        assert _run("keys", "revoke", key_id, *folder).exit_code == 0

        # And the faucet refuses what it cannot do
        mint = serving.get("/v1/organization")["mint"]
        assert "not a USDC token account" in _refusal("faucet", "usdc", mint, "1", *folder)
        for address, amount in (
            ("nonsense", "1"),
            (reserve, "0"),
            (reserve, "-1"),
            (reserve, "1e3"),
            (reserve, "99999999999999"),
        ):
            assert _refusal("faucet", "usdc", *folder, "--", address, amount, exit_code=2).startswith("Error: ")
    assert "agent-vault serve" in _refusal("faucet", "usdc", reserve, "1", *folder)
    assert "no embedded chain" in _refusal("faucet", "usdc", reserve, "1", "--data-dir", str(tmp_path / "none"))
    assert "no service data" in _refusal("orgs", "list", "--data-dir", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
