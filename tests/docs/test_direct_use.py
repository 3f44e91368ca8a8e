"""The guide to direct use names the arguments and accounts of the instructions as the IDL has them."""

import json
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_GUIDE = (_ROOT / "app/docs/guides/direct-use.md").read_text()
_INSTRUCTIONS = {one["name"]: one for one in json.loads((_ROOT / "idl/agent_vault.json").read_text())["instructions"]}
_EVENTS = {"event_authority", "program"}


@pytest.mark.parametrize("name", ["execute_payment", "check_payment", "grant_allowance", "create_wallet"])
def test_guide_names_the_arguments_and_accounts_of_an_instruction(name: str) -> None:
    [section] = [one for one in _GUIDE.split("\n## ") if f"`{name}(" in one]
    [arguments] = re.findall(rf"`{name}\((.*?)\)`", section)
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)

    assert arguments.split(", ") == [one["name"] for one in _INSTRUCTIONS[name]["args"]]
    accounts = {account for row in rows for account in re.findall(r"`(\w+)`", row)}
    assert accounts | _EVENTS == {one["name"] for one in _INSTRUCTIONS[name]["accounts"]} | _EVENTS
