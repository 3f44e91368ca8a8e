"""Runs instructions in the LiteSVM of the installed solders: one JSON command per line in, one answer out.

Needs only solders, so that it can run in a separate environment for each runtime.
Commands: `program` (address, path), `account` (address, lamports, owner, data), `clock` (time), `airdrop` (address),
`read` (address): answers `{"data": base64}`;
`send` (payer, signers, instructions): answers `{"units": n}` or `{"error": text, "logs": [...]}`;
`simulate` (message: base64): runs it without signatures and effects; answers `{"error": name or null}`, or
`{"code": n, "logs": [...]}` for a custom error;
`version_1` (transaction: base64 of a legacy or version-0 one without lookup tables, signers): encodes it in version 1
(SIMD-0385) and signs it; answers `{"transaction": base64}`;
`parse` (transactions: [base64]): answers `{"parsed": [...]}` with the fields of each, null for a malformed one.
"""

import base64
import json
import sys
from typing import Any

import solders
from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.transaction import SanitizeError, Transaction, VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

UNIT_LIMIT = base64.b64decode("AsBcFQA=")  # SetComputeUnitLimit(1,400,000)
COMPUTE_BUDGET = Pubkey.from_string("ComputeBudget111111111111111111111111111111")
UNITS = 1_400_000
COMPUTE_BUDGET_UNITS = 150
"""Compute units that the compute budget program itself uses in a transaction."""


def instruction(wire: dict[str, Any]) -> Instruction:
    """Return an instruction from its JSON form."""
    metas = [AccountMeta(Pubkey.from_string(address), *flags) for address, *flags in wire["accounts"]]
    return Instruction(Pubkey.from_string(wire["program"]), base64.b64decode(wire["data"]), metas)


def send(vm: LiteSVM, command: dict[str, Any]) -> dict[str, Any]:
    """Send one transaction. The units in the answer are those of the given instructions."""
    payer = Keypair.from_base58_string(command["payer"])
    signers = [Keypair.from_base58_string(key) for key in command["signers"]]
    vm.expire_blockhash()
    blockhash = vm.latest_blockhash()
    instructions = [Instruction(COMPUTE_BUDGET, UNIT_LIMIT, []), *map(instruction, command["instructions"])]
    message = Message.new_with_blockhash(instructions, payer.pubkey(), blockhash)
    result = vm.send_transaction(Transaction([payer, *signers], message, blockhash))
    if isinstance(result, FailedTransactionMetadata):
        return {"error": str(result.err()), "logs": result.meta().logs()}
    return {"units": result.compute_units_consumed() - COMPUTE_BUDGET_UNITS}


def simulate(vm: LiteSVM, command: dict[str, Any]) -> dict[str, Any]:
    """Run a message and discard its effects."""
    message = Message.from_bytes(base64.b64decode(command["message"]))
    result = vm.simulate_transaction(Transaction.new_unsigned(message))
    if not isinstance(result, FailedTransactionMetadata):
        return {"error": None}
    error: object = result.err()
    if isinstance(error, TransactionErrorInstructionError):
        error = error.err
    if isinstance(error, InstructionErrorCustom):
        return {"code": error.code, "logs": result.meta().logs()}
    return {"error": str(error).rpartition(".")[2]}


def version_1(command: dict[str, Any]) -> dict[str, Any]:
    """Sign the instructions of a transaction in a new transaction of version 1."""
    from solders.message import MessageV1, TransactionConfig  # type: ignore[attr-defined] # noqa: PLC0415 - newer only

    old = VersionedTransaction.from_bytes(base64.b64decode(command["transaction"])).message
    config = TransactionConfig(compute_unit_limit=UNITS, priority_fee=1)
    keys = {key.pubkey(): key for key in map(Keypair.from_base58_string, command["signers"])}
    message = MessageV1(old.header, config, old.recent_blockhash, old.account_keys, old.instructions)
    signers = [keys[address] for address in old.account_keys[: old.header.num_required_signatures]]
    return {"transaction": base64.b64encode(bytes(VersionedTransaction(message, signers))).decode()}


def parse(transaction: bytes) -> dict[str, Any] | None:
    """Return the fields of a transaction, or None if it is malformed or has surplus bytes."""
    try:
        found = VersionedTransaction.from_bytes(transaction)
        found.sanitize()
    except (ValueError, SanitizeError):
        return None
    if bytes(found) != transaction:
        return None
    message = found.message
    return {
        "message": base64.b64encode(to_bytes_versioned(message)).decode(),
        "signatures": [str(one) for one in found.signatures],
        "keys": [str(one) for one in message.account_keys],
        "blockhash": str(message.recent_blockhash),
        "instructions": [[one.program_id_index, list(one.accounts), one.data.hex()] for one in message.instructions],
    }


def main() -> None:
    """Answer commands until the input ends."""
    vm = LiteSVM().with_sigverify(False).with_blockhash_check(False)  # simulated transactions are unsigned
    print(json.dumps({"solders": solders.__version__}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        match command["do"]:
            case "program":
                vm.add_program_from_file(Pubkey.from_string(command["address"]), command["path"])
            case "account":
                owner, data = Pubkey.from_string(command["owner"]), base64.b64decode(command["data"])
                vm.set_account(Pubkey.from_string(command["address"]), Account(command["lamports"], data, owner))
            case "read":
                found = vm.get_account(Pubkey.from_string(command["address"]))
                answer = {"data": base64.b64encode(b"" if found is None else found.data).decode()}
            case "clock":
                clock = vm.get_clock()
                clock.unix_timestamp = command["time"]
                vm.set_clock(clock)
            case "airdrop":
                vm.airdrop(Pubkey.from_string(command["address"]), 10**13)
            case "send":
                answer = send(vm, command)
            case "simulate":
                answer = simulate(vm, command)
            case "version_1":
                answer = version_1(command)
            case "parse":
                answer = {"parsed": [parse(base64.b64decode(one)) for one in command["transactions"]]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
