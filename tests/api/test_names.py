"""Names that people type: what a reader cannot see is refused, and what looks the same is stored as the same."""

import re
import unicodedata
from typing import Any

import pytest
from click.testing import CliRunner

from app.commands.main import main
from app.core.text import has_hidden
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HIDDEN = {
    "null": "\u0000",
    "tab": "\t",
    "line feed": "\n",
    "delete": "\u007f",
    "next line": "\u0085",
    "soft hyphen": "\u00ad",
    "grapheme joiner": "\u034f",
    "arabic letter mark": "\u061c",
    "hangul filler": "\u3164",
    "mongolian vowel separator": "\u180e",
    "zero-width space": "\u200b",
    "zero-width non-joiner": "\u200c",
    "zero-width joiner": "\u200d",
    "right-to-left mark": "\u200f",
    "line separator": "\u2028",
    "right-to-left embedding": "\u202b",
    "right-to-left override": "\u202e",
    "word joiner": "\u2060",
    "braille blank": "\u2800",
    "isolate": "\u2066",
    "variation selector": "\ufe00",
    "byte order mark": "\ufeff",
    "interlinear anchor": "\ufff9",
    "tag": "\U000e0041",
    "object replacement": "\ufffc",
    "private use": "\ue000",
    "musical format": "\U0001d173",
    "shorthand format": "\U0001bca0",
    "variation selector supplement": "\U000e0100",
}

_TAKEN = "wallet_agent_id_conflict"


async def _places(world: ServiceWorld, text: str) -> list[tuple[str, str, Json, str]]:
    """Every request in which a person types a name, with this text in it, and the field that holds it."""
    wallet = (await world.wallet(funds=None))["wallet_id"]
    policy = (await world.policy())["policy_id"]
    new: dict[str, Any] = {"agentId": f"names {wallet}", "label": "Names", "policyId": policy}
    return [
        ("POST", "/v1/wallets", {**new, "agentId": text}, "agentId"),
        ("POST", "/v1/wallets", {**new, "label": text}, "label"),
        ("POST", "/v1/wallets", {**new, "agentId": f"tags {wallet}", "tags": ["a", text]}, "tags.1"),
        ("PATCH", f"/v1/wallets/{wallet}", {"label": text}, "label"),
        ("PATCH", f"/v1/wallets/{wallet}", {"tags": [text]}, "tags.0"),
        ("POST", "/v1/policies", {"name": text}, "name"),
        ("PATCH", f"/v1/policies/{policy}", {"name": text}, "name"),
        ("POST", f"/v1/policies/{policy}/clone", {"name": text}, "name"),
        ("POST", "/v1/keys", {"role": "viewer", "name": text}, "name"),
    ]


@pytest.mark.proves("Conventions: Names")
@pytest.mark.parametrize("name", _HIDDEN)
async def test_name_with_what_nobody_sees_is_refused(world: ServiceWorld, name: str) -> None:
    for method, path, body, field in await _places(world, f"Al{_HIDDEN[name]}ice"):
        error = error_of(await world.call(method, path, body), 400, "invalid_request")
        assert error["message"] == (
            f"{field}: must not contain control, zero-width, invisible or direction-changing characters."
        )


async def test_documented_patterns_exclude_hidden_characters_up_to_ffff(world: ServiceWorld) -> None:
    schemas = (await world.client.get("/openapi.json")).json()["components"]["schemas"]
    wallet = schemas["CreateWallet"]["properties"]
    patterns = [wallet["agentId"]["pattern"], wallet["label"]["pattern"], wallet["tags"]["items"]["pattern"]]
    documented = [hidden for hidden in _HIDDEN.values() if hidden <= "\uffff" and hidden != "\u2028"]

    for pattern in patterns:
        assert re.search(pattern, "Al\u2764\ufe0f \U0001f600ice")
        assert not [hidden for hidden in documented if re.search(pattern, f"Al{hidden}ice")]


async def test_every_control_and_format_character_is_hidden_or_listed() -> None:
    # Signs of Arabic, Syriac, Kaithi, Egyptian, shorthand and musical notation are format characters that are seen,
    # or stand next to such.
    seen = "\u0600-\u0605\u06dd\u070f\u0890-\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001d17a"
    listed = re.compile(f"[{seen}]")

    for number in [*range(0xD800), *range(0xE000, 0x110000)]:
        character = chr(number)
        if unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp"}:
            assert has_hidden(character) or listed.search(character), hex(number)


@pytest.mark.proves("Conventions: Names")
async def test_names_of_any_script_are_stored_composed(world: ServiceWorld) -> None:
    text = "Zoe\u0308 \u0416\u043e\u0440\u0430 \u6771\u4eac \u0645\u0631\u062d\u0628\u0627 \u2764\ufe0f 100 %"
    composed = unicodedata.normalize("NFC", text.replace("\ufe0f", ""))
    assert composed != text

    for method, path, body, field in await _places(world, text):
        answer = await world.ok(method, path, body)
        plain = {"agentId": "agent_id", "tags.0": "tags", "tags.1": "tags"}.get(field, field)
        assert composed in (answer[plain] if plain == "tags" else [answer[plain]])


@pytest.mark.parametrize("nothing", ["\ufe0f", " \ufe0f "])
async def test_name_of_nothing_but_a_selector_is_refused(world: ServiceWorld, nothing: str) -> None:
    for method, path, body, field in await _places(world, nothing):
        message = error_of(await world.call(method, path, body), 400, "invalid_request")["message"]
        assert message.startswith(f"{field}: must not be")


@pytest.mark.proves("Conventions: Names")
async def test_agent_id_that_looks_the_same_is_the_same(world: ServiceWorld) -> None:
    await world.wallet(funds=None, agentId="ame\u0301lie", tags=["re\u0301gion"])

    again = {"agentId": "am\u00e9lie", "label": "Again", "policyId": "pol_moderate"}
    error_of(await world.call("POST", "/v1/wallets", again), 409, _TAKEN)
    error_of(await world.call("POST", "/v1/wallets", {**again, "agentId": "am\u00e9lie\ufe0f"}), 409, _TAKEN)
    await world.wallet(funds=None, agentId="two words")
    error_of(await world.call("POST", "/v1/wallets", {**again, "agentId": "two\u00a0words"}), 409, _TAKEN)
    for tag in ("r\u00e9gion", "re\u0301gion", "r\u00e9gion\ufe0f"):
        [found] = (await world.ok("GET", f"/v1/wallets?tags={tag}"))["data"]
        assert (found["agent_id"], found["tags"]) == ("am\u00e9lie", ["r\u00e9gion"])


@pytest.mark.sqlite("runs a command on the data folder")
async def test_command_line_takes_the_same_names_for_keys(world: ServiceWorld) -> None:
    options = ["--data-dir", str(world.settings.data_dir), "--org", "test", "--role", "viewer"]

    refused = CliRunner().invoke(main, ["keys", "create", *options, "--name", "Al\u202eice"])
    made = CliRunner().invoke(main, ["keys", "create", *options, "--name", "Ame\u0301lie"])

    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "must not contain control" in refused.output
    assert made.exit_code == 0
    names = [one["name"] for one in (await world.ok("GET", "/v1/keys?limit=1"))["data"]]
    assert names == ["Am\u00e9lie"]
