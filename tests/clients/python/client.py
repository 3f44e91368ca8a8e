"""Uses a vault directly: reads it, pays from it, is refused by its policy, and reads the program's events.

Needs the IDL, the vault's session key, the address of a Solana node and the package anchorpy, and nothing else of Agent
Vault. The session key also pays the fees, so its address needs some SOL.
"""

import argparse
import asyncio
import base64
import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anchorpy import Context, Program, Provider, Wallet
from anchorpy.error import ProgramError
from anchorpy.program.common import Event
from based58 import b58decode
from legacy_idl import legacy_idl  # type: ignore[import-not-found] # it is next to this file
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.core import RPCException
from solana.rpc.types import TxOpts
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_status import EncodedConfirmedTransactionWithStatusMeta, UiCompiledInstruction, UiTransaction
from spl.token.instructions import create_idempotent_associated_token_account, get_associated_token_address

EVENT_TAG = bytes.fromhex("e445a52e51cb9a1d")
"""The first bytes of an inner instruction that carries an event."""

Json = dict[str, Any]


class VaultClient:
    """A vault, and the session key that pays from it."""

    def __init__(self, program: Program, errors: dict[int, str], vault: Pubkey) -> None:
        self._program = program
        self._errors = errors
        self._vault = vault
        self._connection: AsyncClient = program.provider.connection
        self._session: Keypair = program.provider.wallet.payer

    async def read(self) -> Json:
        """Return the fields of the vault's account, and its balance in micro-USDC."""
        vault = await self._program.account["Vault"].fetch(self._vault)
        balance = await self._connection.get_token_account_balance(vault.tokens)
        return {
            "org": str(vault.org),
            "policy": str(vault.policy),
            "session_authority": str(vault.session_authority),
            "sequence": str(vault.sequence),
            "balance": balance.value.amount,
        }

    async def pay(self, to: Pubkey, amount: int) -> Signature:
        """Pay micro-USDC to the associated token account of `to`, creating the account if necessary.

        Raises ProgramError if the program refused the payment; then nothing was sent.
        """
        vault = await self._program.account["Vault"].fetch(self._vault)
        org = await self._program.account["Org"].fetch(vault.org)
        policy = await self._program.account["Policy"].fetch(vault.policy)
        none = program_id = self._program.program_id
        budget = None if vault.budget == Pubkey.default() else await self._program.account["Budget"].fetch(vault.budget)
        # This account need not exist: then the program treats the recipient as uncategorised.
        seed = bytes(byte & 0x7F for byte in hashlib.sha256(bytes(to)).digest()).decode()
        recipient = Pubkey.create_with_seed(vault.org, seed, program_id)
        event_authority, _ = Pubkey.find_program_address([b"__event_authority"], program_id)
        accounts = {
            "signer": self._session.pubkey(),
            "org": vault.org,
            "policy": vault.policy,
            "vault": self._vault,
            "vault_tokens": vault.tokens,
            "destination": get_associated_token_address(to, org.mint, org.token_program),
            "mint": org.mint,
            "token_program": org.token_program,
            "allowlist": none if policy.allowlist == Pubkey.default() else policy.allowlist,
            "recipient": recipient,
            "co_signer": none,
            "approval": none,
            "approval_rent_receiver": none,
            "budget": none if budget is None else vault.budget,
            "budget_parent": none if budget is None or budget.parent == Pubkey.default() else budget.parent,
            "event_authority": event_authority,
            "program": program_id,
        }
        reference = list(secrets.token_bytes(16))
        payment = self._program.instruction["execute_payment"](amount, reference, ctx=Context(accounts=accounts))
        create = create_idempotent_associated_token_account(self._session.pubkey(), to, org.mint, org.token_program)
        return await self._send([create, self._without_absent(payment)])

    def _without_absent(self, instruction: Instruction) -> Instruction:
        """Return the instruction without the flags of absent accounts.

        The program id represents an absent account and must neither sign nor be written, but anchorpy flags it like
        the account that is absent.
        """
        program_id = self._program.program_id
        absent = AccountMeta(program_id, is_signer=False, is_writable=False)
        accounts = [absent if account.pubkey == program_id else account for account in instruction.accounts]
        return Instruction(program_id, instruction.data, accounts)

    async def _send(self, instructions: list[Instruction]) -> Signature:
        blockhash = (await self._connection.get_latest_blockhash(Confirmed)).value.blockhash
        message = Message.new_with_blockhash(instructions, self._session.pubkey(), blockhash)
        try:
            signature: Signature = await self._program.provider.send(VersionedTransaction(message, [self._session]))
        except RPCException as refused:
            error = ProgramError.parse(refused.args[0], self._errors, self._program.program_id)
            raise error or refused from None
        return signature

    async def events(self, signature: Signature) -> list[Event]:
        """Return the program's events in a confirmed transaction.

        Only the program can create the inner instructions that carry them. A failed transaction changed nothing and so
        has no events.
        """
        found = await self._connection.get_transaction(
            signature, encoding="json", commitment=Confirmed, max_supported_transaction_version=0
        )
        if found.value is None:
            raise LookupError(f"the node does not have transaction {signature}")
        bodies = [data[len(EVENT_TAG) :] for data in self._inner_data(found.value) if data.startswith(EVENT_TAG)]
        return [self._program.coder.events.parse(body) for body in bodies]

    def _inner_data(self, transaction: EncodedConfirmedTransactionWithStatusMeta) -> Iterator[bytes]:
        """Yield the data of the instructions that other instructions sent to the program."""
        meta = transaction.transaction.meta
        if meta is None or meta.err is not None:
            return
        content = transaction.transaction.transaction
        assert isinstance(content, UiTransaction)  # the type for the encoding "json"
        keys = [key for key in content.message.account_keys if isinstance(key, Pubkey)]
        if meta.loaded_addresses is not None:
            keys += [*meta.loaded_addresses.writable, *meta.loaded_addresses.readonly]
        for inner in meta.inner_instructions or []:
            for instruction in inner.instructions:
                assert isinstance(instruction, UiCompiledInstruction)  # likewise
                if keys[instruction.program_id_index] == self._program.program_id:
                    yield b58decode(instruction.data.encode())

    async def history(self) -> list[Event]:
        """Return the vault's events, oldest first, from its newest 1,000 transactions."""
        found = await self._connection.get_signatures_for_address(self._vault, commitment=Confirmed)
        landed = [entry.signature for entry in reversed(found.value) if entry.err is None]
        events = [event for signature in landed for event in await self.events(signature)]
        return [event for event in events if getattr(event.data, "vault", None) == self._vault]

    def violation(self, logs: list[str]) -> Event | None:
        """Return the `PolicyViolation` that the program logged, or `None` if no rule of a policy refused.

        Any program may log any line, so only lines between the program's own invocation and its end count.
        """
        stack: list[str] = []
        for line in logs:
            if started := re.fullmatch(r"Program (\w{32,44}) invoke \[\d+\]", line):
                stack.append(started[1])
            elif re.match(r"Program \w{32,44} (success$|failed: )", line):
                stack.pop()
            elif line.startswith("Program data: ") and stack == [str(self._program.program_id)]:
                data = base64.b64decode(line.removeprefix("Program data: "))
                return self._program.coder.events.parse(data)
        return None


def shown(value: Any) -> Any:
    """Return a value of the program as JSON: addresses in base58, bytes in hex, integers as decimal strings.

    Strings, because many JSON parsers lose the last digits of 64-bit integers.
    """
    if isinstance(value, Event):
        return {"name": value.name, "data": shown(value.data)}
    if dataclasses.is_dataclass(value):
        return {field.name: shown(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list):
        return bytes(value).hex()  # the only arrays in events are of bytes
    return value if value is None or isinstance(value, bool) else str(value)


async def run(arguments: argparse.Namespace) -> Json:
    """Read, pay, be refused, and read the events."""
    idl = json.loads(arguments.idl.read_text())
    session = Keypair.from_bytes(bytes(json.loads(arguments.keypair.read_text())))
    async with AsyncClient(arguments.rpc_url, Confirmed) as connection:
        options = TxOpts(skip_confirmation=False, preflight_commitment=Confirmed)
        provider = Provider(connection, Wallet(session), options)
        program = Program(legacy_idl(idl), Pubkey.from_string(idl["address"]), provider)
        messages = {error["code"]: error["msg"] for error in idl["errors"]}
        client = VaultClient(program, messages, arguments.vault)

        vault = await client.read()
        signature = await client.pay(arguments.to, arguments.amount)
        [paid] = await client.events(signature)
        try:
            await client.pay(arguments.to, arguments.too_much)
        except ProgramError as error:
            refused = error
        else:
            raise RuntimeError("the second payment was not refused")
        names = {error["code"]: error["name"] for error in idl["errors"]}
        return {
            "vault": vault,
            "payment": {"signature": str(signature), "event": shown(paid)},
            "refusal": {
                "code": refused.code,
                "name": names.get(refused.code),
                "message": refused.msg,
                "event": shown(client.violation(refused.logs or [])),
            },
            "history": [shown(event) for event in await client.history()],
        }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idl", type=Path, required=True, help="idl/agent_vault.json")
    parser.add_argument("--rpc-url", required=True)
    parser.add_argument("--keypair", type=Path, required=True, help="session key, a file in solana-keygen's format")
    parser.add_argument("--vault", type=Pubkey.from_string, required=True, help="address of the vault")
    parser.add_argument("--to", type=Pubkey.from_string, required=True, help="owner of the account to pay")
    parser.add_argument("--amount", type=int, required=True, help="micro-USDC that the policy allows")
    parser.add_argument("--too-much", type=int, required=True, help="micro-USDC that the policy refuses")
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
