"""Nodes that give false answers, for `FlakyTransport.alter`."""

from collections.abc import Callable, Mapping
from typing import Any


def _blind(method: str, result: Any) -> Any:
    """Act as a node that shows no account."""
    return {**result, "value": [None] * len(result["value"])} if method == "getMultipleAccounts" else result


def _garbled(method: str, result: Any) -> Any:
    """Act as a node that shows empty accounts with another owner."""
    if method != "getMultipleAccounts":
        return result
    empty = {"lamports": 1, "data": ["", "base64"], "owner": "1" * 32, "executable": False, "rentEpoch": 0}
    return {**result, "value": [empty] * len(result["value"])}


def _refusing(err: object) -> Callable[[str, Any], Any]:
    """Act as a node that refuses every simulation with ``err``, without logs that name a program."""

    def alter(method: str, result: Any) -> Any:
        return {**result, "value": {**result["value"], "err": err, "logs": []}} if "simulate" in method else result

    return alter


#: Changes of a node's answers, by name.
LIES: Mapping[str, Callable[[str, Any], Any]] = {
    "blind": _blind,
    "garbled": _garbled,
    "custom": _refusing({"InstructionError": [0, {"Custom": 1}]}),
    "named": _refusing({"InstructionError": [0, {"Custom": 6_001}]}),
    "unknown": _refusing("Foo"),
}
