"""Keys in a token that cannot be used: one line, exit code 1, and the PIN nowhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.role_keys import load_or_create
from app.core.settings import Settings
from app.core.signers import KeyFileError
from tests.support.softhsm import MODULE, PIN, SoftHsm, require_softhsm
from tests.support.warm import programs


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> SoftHsm:
    require_softhsm()
    kinds = {"operator": "ed25519", "rsa": "rsa", "p256": "p256"}
    return SoftHsm(tmp_path_factory.mktemp("vault"), kinds)


_LOAD = """
import sys
from pathlib import Path
from app.core.role_keys import load_or_create
from app.core.settings import Settings
from app.core.signers import KeyFileError
try:
    signers = load_or_create(Path(sys.argv[1]), Settings(), create=True)
except KeyFileError as error:
    sys.exit(f"Error: {error}")
print(bytes(signers.operator_address).hex())
"""


def _run(command: list[str], key: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a command with the operator's key in a process of its own, because a process logs in to a token once."""
    done = subprocess.run(
        [programs() / "interpreter", *command],
        env={**environment, "AGENT_VAULT_OPERATOR_KEY": key, "AGENT_VAULT_PKCS11_TIMEOUT": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert PIN not in done.stdout + done.stderr
    return done


def _line(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the one line with which a command refused the key."""
    assert done.returncode == 1, done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: AGENT_VAULT_OPERATOR_KEY: ")
    return line


def _refusal(folder: Path, key: str, environment: dict[str, str]) -> str:
    return _line(_run(["-c", _LOAD, str(folder / "keys")], key, environment))


def test_command_refuses_a_malformed_key_in_one_line(tmp_path: Path) -> None:
    command = [
        "-c",
        "from app.commands.main import main as m; m()",
        "orgs",
        "create",
        "acme",
        "--data-dir",
        str(tmp_path),
    ]
    key = f"pkcs11:token=t;object=o?module-path=/a.so&pin-value={PIN}"
    assert "must not contain the PIN" in _line(_run(command, key, dict(os.environ)))


@pytest.mark.parametrize("plain", [True, False])
def test_usable_key_is_loaded(token: SoftHsm, tmp_path: Path, plain: bool) -> None:
    uri = token.uri("operator", module=MODULE if plain else None)
    done = _run(["-c", _LOAD, str(tmp_path / "keys")], uri, token.env)
    assert done.stdout.strip() == token.points["operator"].hex(), done.stderr


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("pkcs11:object=operator?module-path=/a.so&pin-source=file:/a", "must name the token"),
        ("pkcs11:token=t?module-path=/a.so&pin-source=file:/a", "must name the key"),
        ("pkcs11:token=t;object=o?pin-source=file:/a", "has no module-path"),
        ("pkcs11:token=t;object=o?module-path=/a.so", "has no pin-source"),
        ("pkcs11:token=t;object=o?module-path=a.so&pin-source=file:/a", "must be the absolute path"),
        ("pkcs11:token=t;object=o?module-path=/a.so&pin-source=http://h/a", "must be the absolute path"),
        (f"pkcs11:token=t;object=o?module-path=/a.so&pin-value={PIN}", "must not contain the PIN"),
        ("pkcs11:token=t;object=o;obj=p?module-path=/a.so&pin-source=/a", "does not support: obj"),
        ("pkcs11:token=t;token=u;object=o?module-path=/a.so&pin-source=/a", "has token twice"),
        ("pkcs11:token=;object=o?module-path=/a.so&pin-source=/a", "token has no value"),
        ("pkcs11:token=t;object=o;type=cert?module-path=/a.so&pin-source=/a", "type must be private"),
        ("pkcs11:token=t;object=o?module-path=/no/such.so&pin-source=file:/a", "no file /no/such.so"),
        ("/no/such/key.json", "/no/such/key.json: No such file"),
    ],
)
def test_malformed_key_is_refused(tmp_path: Path, key: str, says: str) -> None:
    with pytest.raises(KeyFileError, match=r"^AGENT_VAULT_OPERATOR_KEY: ") as refused:
        load_or_create(tmp_path, Settings(operator_key=key), create=True)
    assert says in str(refused.value)
    assert PIN not in str(refused.value)


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("nobody", "no such key"),
        ("rsa", "not an Ed25519 key but RSA"),
        ("p256", "not an Ed25519 key but EC"),
    ],
)
def test_unusable_key_in_the_token_is_refused(token: SoftHsm, tmp_path: Path, label: str, says: str) -> None:
    assert says in _refusal(tmp_path, token.uri(label), token.env)


def test_missing_token_is_refused(token: SoftHsm, tmp_path: Path) -> None:
    assert "no such token" in _refusal(tmp_path, token.uri("operator", token="other"), token.env)


def test_wrong_pin_is_refused(token: SoftHsm, tmp_path: Path) -> None:
    wrong = tmp_path / "pin"
    wrong.touch(mode=0o600)
    wrong.write_text("not-the-pin\n")
    line = _refusal(tmp_path, token.uri("operator", pin=wrong), token.env)
    assert "refuses the PIN" in line
    assert "not-the-pin" not in line


def test_locked_pin_is_refused(token: SoftHsm, tmp_path: Path) -> None:
    token.lock(True)
    try:
        assert "PIN is locked" in _refusal(tmp_path, token.uri("operator"), token.env)
    finally:
        token.lock(False)


def test_file_of_a_pin_that_others_can_read_is_refused(token: SoftHsm, tmp_path: Path) -> None:
    opened = tmp_path / "pin"
    opened.write_text(PIN)
    opened.chmod(0o644)
    assert "must belong to this user and have mode 600" in _refusal(
        tmp_path, token.uri("operator", pin=opened), token.env
    )


def test_library_that_is_no_module_is_refused(token: SoftHsm, tmp_path: Path) -> None:
    library = tmp_path / "not-a-module.so"
    library.write_bytes(b"not a library")
    line = _refusal(tmp_path, token.uri("operator", module=library), token.env)
    assert "cannot be used as a PKCS#11 module" in line


def test_token_that_hangs_at_the_start_is_refused(token: SoftHsm, tmp_path: Path) -> None:
    token.hang(True)
    try:
        assert "does not answer within 2 seconds" in _refusal(tmp_path, token.uri("operator"), token.env)
    finally:
        token.hang(False)


def test_missing_package_is_named(tmp_path: Path) -> None:
    key = f"pkcs11:token=t;object=o?module-path={Path(sys.executable)}&pin-source=file:/a"
    without = f"import sys; sys.modules['pkcs11'] = None\n{_LOAD}"
    line = _line(_run(["-c", without, str(tmp_path / "keys")], key, dict(os.environ)))
    assert "pip install 'agent-vault[pkcs11]'" in line
