"""Finds the program's `PolicyViolation` in the logs of a simulation.

Any program in a transaction may write log lines and data. A line therefore counts only inside the frame that the
runtime opened for this program as a top-level instruction. That frame must also fail with the error code of the rule.
Nodes cut logs at 10 kB. A violation in cut logs is ignored.
"""

import base64
import re
from binascii import Error as BinasciiError
from collections.abc import Sequence
from dataclasses import dataclass

from solders.pubkey import Pubkey

from app.chain.rules import RULE_ERRORS, RULES
from idl.codec import Codec, CodecError

# Match an address: otherwise a program could imitate a line of the runtime with `Program log: success`.
_ADDRESS = "([1-9A-HJ-NP-Za-km-z]{32,44})"
_INVOKE = re.compile(rf"Program {_ADDRESS} invoke \[([0-9]+)\]")
_SUCCESS = re.compile(rf"Program {_ADDRESS} success")
_FAILED = re.compile(rf"Program {_ADDRESS} failed: (.*)", re.DOTALL)
_HEXADECIMAL = re.compile("0x[0-9a-f]+")
_CUSTOM_ERROR = "custom program error: "
_DATA = "Program data: "
_CUT = "Log truncated"


@dataclass(frozen=True, slots=True)
class LoggedViolation:
    """The rule that refused a payment, with its limit and the attempted value.

    `limit` and `attempted` are in the unit of the rule: micro-USDC, a count, a code or Unix seconds. `budget` is the
    address of the budget with the rule, or the zero address if the policy has the rule.
    """

    rule: int
    limit: int
    attempted: int
    vault: Pubkey
    recipient: Pubkey
    budget: Pubkey

    @property
    def rule_name(self) -> str:
        """The rule's name in the API."""
        return RULES[self.rule]


def shows_refusal(logs: Sequence[str]) -> bool:
    """Return True if the logs end with the failure of a program, or if the node has cut them."""
    # Short lines can follow the mark of the cut.
    return bool(logs) and (_CUT in logs or _FAILED.fullmatch(logs[-1]) is not None)


def is_refused_by(logs: Sequence[str], codec: Codec) -> bool:
    """Return True if the logs end with the failure of this program as a top-level instruction."""
    match = _FAILED.fullmatch(logs[-1]) if logs else None
    return match is not None and match[1] == str(codec.program_id)


def policy_violation(logs: Sequence[str], codec: Codec) -> LoggedViolation | None:
    """Return the violation that the program logged when it refused a payment.

    Return `None` if the program logged no violation, if another program wrote it, or if the logs were cut.
    """
    program = str(codec.program_id)
    frames: list[str] = []
    found: LoggedViolation | None = None
    for line in logs:
        if line == _CUT:
            return None
        if match := _INVOKE.fullmatch(line):
            if int(match[2]) != len(frames) + 1:
                return None
            frames.append(match[1])
        elif match := _SUCCESS.fullmatch(line):
            if not frames or frames.pop() != match[1]:
                return None
            if not frames:
                found = None
        elif match := _FAILED.fullmatch(line):
            if not frames or frames.pop() != match[1]:
                return None
            if not frames:
                return found if match[1] == program and _fails_with(match[2], found, codec) else None
        elif frames == [program] and line.startswith(_DATA):
            found = _violation(line.removeprefix(_DATA), codec) or found
    return None


def _violation(encoded: str, codec: Codec) -> LoggedViolation | None:
    try:
        event = codec.decode_log(base64.b64decode(encoded, validate=True))
    except (BinasciiError, CodecError):
        return None
    if event is None or event.name != "PolicyViolation" or event.data["rule"] >= len(RULES):
        return None
    data = event.data
    return LoggedViolation(
        data["rule"], data["limit"], data["attempted"], data["vault"], data["recipient"], data["budget"]
    )


def _fails_with(message: str, violation: LoggedViolation | None, codec: Codec) -> bool:
    code = message.removeprefix(_CUSTOM_ERROR)
    if violation is None or code == message or not _HEXADECIMAL.fullmatch(code):
        return False
    return codec.error_name(int(code, 16)) == RULE_ERRORS[violation.rule]
