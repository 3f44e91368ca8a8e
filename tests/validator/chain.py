"""The interface of the VM on a validator, so that the program's tests run there unchanged.

What a VM simply sets, transactions do here: they send lamports, and create and fill mints and token accounts. The clock
is real time. What no transaction can do raises `NeedsVm`.
"""

import base64
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from based58 import b58decode
from solders.account import Account
from solders.hash import Hash
from solders.instruction import CompiledInstruction, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from spl.token.instructions import (
    InitializeAccountParams,
    InitializeMintParams,
    MintToParams,
    create_idempotent_associated_token_account,
    get_associated_token_address,
    initialize_account,
    initialize_mint,
    mint_to,
)

from app.chain.addresses import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from tests.support.vm import Receipt, State, Vm, receipt
from tests.support.vm_tokens import ACCOUNT_SIZE, DECIMALS, mint_data, token_account_data
from tests.validator.node import Node

CLOCK = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")
_CONFIRMED = {"commitment": "confirmed"}
_BASE64 = {**_CONFIRMED, "encoding": "base64"}
_PATIENCE = 30.0
_POLL = 0.01
_WAIT = 10
"""Most seconds to wait when a test sets the clock ahead."""
_INSTRUCTIONS = 6
"""Instructions of preparation that fit into one transaction."""


class NeedsVm(Exception):  # noqa: N818 - not an error of the chain
    """A test needs what only a VM can do."""


class Moment(int):
    """A time of the running test: it equals any time less than half a minute away."""

    _SECONDS = 30

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and abs(int(self) - int(other)) <= self._SECONDS

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment] # equal values would need equal hashes


class ValidatorVm(Vm):
    """A VM backed by a validator. `keys` and `known` take over those of another VM."""

    def __init__(self, node: Node, keys: Mapping[Pubkey, Keypair] | None = None, known: Iterable[Pubkey] = ()) -> None:
        # Skips the constructor of Vm, which would start a chain.
        self.node = node
        self.fee_payer = node.treasury.pubkey()
        self._keys = {**(keys or {}), self.fee_payer: node.treasury}
        self._known = set(known)
        self._rent: dict[int, int] = {}
        self._used: Hash | None = None
        self._prepared: dict[Pubkey, list[Instruction]] = {}

    # Time

    @property
    def now(self) -> int:
        """Unix time of the chain's clock, a `Moment`."""
        clock = self._fetch([CLOCK])[0]
        assert clock is not None
        return Moment.from_bytes(clock.data[32:40], "little", signed=True)

    @now.setter
    def now(self, seconds: int) -> None:
        if not 0 <= seconds - self.now <= _WAIT:
            raise NeedsVm("the clock cannot be set to another time")
        self.wait_until(seconds)

    def wait_until(self, seconds: int) -> None:
        """Wait until the chain's clock shows this Unix time, or a later one."""
        while (now := self.now) < seconds:
            time.sleep(max(_POLL, min(1.0, (seconds - now) / 2)))

    # Accounts

    def account(self, address: Pubkey) -> Account | None:
        self.prepare()
        return self._fetch([address])[0]

    def lamports(self, address: Pubkey) -> int:
        account = self.account(address)
        return 0 if account is None else account.lamports

    def state(self) -> State:
        self.prepare()
        addresses = list(self._known - {self.fee_payer})
        found = zip(addresses, self._fetch(addresses), strict=True)
        return {
            address: None if account is None else (account.lamports, account.data, account.owner)
            for address, account in found
            if account is None or not account.executable
        }

    def rent(self, size: int) -> int:
        if size not in self._rent:
            self._rent[size] = self.node.call("getMinimumBalanceForRentExemption", size)
        return self._rent[size]

    def put(self, address: Pubkey, data: bytes, owner: Pubkey, lamports: int | None = None) -> Pubkey:
        """Prepare such an account. A mint, or a token account without a derived address, gets a new address.

        The fee payer becomes the authority of mints. Lamports and tokens of an existing account can only grow.
        """
        if address in self._prepared:
            self.prepare()
        there = self._fetch([address])[0]
        if there is not None and (there.data, there.owner) == (data, owner) and lamports in {None, there.lamports}:
            return address
        if owner == SYSTEM_PROGRAM and not data and lamports is not None:
            self._give(address, lamports - (0 if there is None else there.lamports))
        elif owner in {TOKEN_PROGRAM, TOKEN_2022_PROGRAM} and data == mint_data(freeze_authority=_freezer(data)):
            address = self._mint(owner, _freezer(data))
        elif owner in {TOKEN_PROGRAM, TOKEN_2022_PROGRAM} and len(data) == ACCOUNT_SIZE:
            address = self._tokens(address, there, data, owner)
        else:
            raise NeedsVm(f"no transaction can bring {address} into this state")
        self._known.add(address)
        return address

    def _give(self, address: Pubkey, lamports: int) -> None:
        if lamports < 0:
            raise NeedsVm("lamports cannot be removed")
        parameters = TransferParams(from_pubkey=self.fee_payer, to_pubkey=address, lamports=lamports)
        self._prepared[address] = [transfer(parameters)]

    def _mint(self, program: Pubkey, freeze_authority: Pubkey | None) -> Pubkey:
        mint = self.key()
        make = initialize_mint(InitializeMintParams(DECIMALS, program, mint, self.fee_payer, freeze_authority))
        self._prepared[mint] = [self._creation(mint, len(mint_data()), program), make]
        return mint

    def _tokens(self, address: Pubkey, there: Account | None, data: bytes, program: Pubkey) -> Pubkey:
        mint, owner = Pubkey(data[:32]), Pubkey(data[32:64])
        amount = _amount(data)
        if data != token_account_data(mint, owner, amount):
            raise NeedsVm("no delegate, close authority or freeze can be set")
        if there is not None and (there.owner, there.data[:64]) == (program, data[:64]):
            make = []
        elif address == get_associated_token_address(owner, mint, program):
            make = [create_idempotent_associated_token_account(self.fee_payer, owner, mint, program)]
        elif there is None:
            address = self.key()
            make = [
                self._creation(address, ACCOUNT_SIZE, program),
                initialize_account(InitializeAccountParams(program, address, mint, owner)),
            ]
        else:
            raise NeedsVm(f"{address} is already another account")
        missing = amount - (0 if there is None else _amount(there.data))
        if missing < 0:
            raise NeedsVm("tokens cannot be removed")
        if missing:
            make.append(mint_to(MintToParams(program, mint, address, self.fee_payer, missing)))
        self._prepared[address] = make
        return address

    def _creation(self, address: Pubkey, size: int, program: Pubkey) -> Instruction:
        parameters = CreateAccountParams(
            from_pubkey=self.fee_payer, to_pubkey=address, lamports=self.rent(size), space=size, owner=program
        )
        return create_account(parameters)

    def prepare(self) -> None:
        """Create what `put` prepared, all together: each transaction waits for its confirmation."""
        instructions = [one for prepared in self._prepared.values() for one in prepared]
        self._prepared = {}
        for start in range(0, len(instructions), _INSTRUCTIONS):
            self.succeed(*instructions[start : start + _INSTRUCTIONS])

    def _fetch(self, addresses: list[Pubkey]) -> list[Account | None]:
        found: list[Account | None] = []
        for start in range(0, len(addresses), 100):
            chunk = [str(address) for address in addresses[start : start + 100]]
            found += [_account(one) for one in self.node.call("getMultipleAccounts", chunk, _BASE64)["value"]]
        return found

    # Transactions

    def blockhash(self) -> Hash:
        latest = self.node.call("getLatestBlockhash", _CONFIRMED)["value"]
        self._used = Hash.from_string(latest["blockhash"])
        return self._used

    def renew_blockhash(self) -> None:
        self.prepare()
        used = self._used
        while self.blockhash() == used:
            time.sleep(_POLL)

    def submit(self, transaction: Transaction) -> Receipt:
        self.prepare()
        keys = transaction.message.account_keys
        self._known.update(keys)
        raw = base64.b64encode(bytes(transaction)).decode()
        refused = self._simulate(raw)
        if refused["err"] is not None and "InstructionError" not in refused["err"]:
            # Such a transaction never enters a block.
            return _receipt(refused, keys)
        options = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": "confirmed"}
        signature = self.node.call("sendTransaction", raw, options)
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            landed = self.node.call("getTransaction", signature, {**_CONFIRMED, "encoding": "json"})
            if landed is not None:
                return _receipt(landed["meta"], keys)
            time.sleep(_POLL)
        raise TimeoutError(f"{signature} has not landed in {_PATIENCE} s")

    def simulate(self, *instructions: Instruction) -> Receipt:
        self.prepare()
        transaction = self.transaction(*instructions)
        raw = base64.b64encode(bytes(transaction)).decode()
        return _receipt(self._simulate(raw), transaction.message.account_keys)

    def _simulate(self, raw: str) -> Any:
        options = {**_BASE64, "sigVerify": True, "innerInstructions": True}
        return self.node.call("simulateTransaction", raw, options)["value"]


def _account(value: Any) -> Account | None:
    if value is None:
        return None
    data = base64.b64decode(value["data"][0])
    return Account(value["lamports"], data, Pubkey.from_string(value["owner"]), value["executable"])


def _amount(tokens: bytes) -> int:
    return int.from_bytes(tokens[64:72], "little")


def _freezer(mint: bytes) -> Pubkey | None:
    return Pubkey(mint[50:82]) if len(mint) == len(mint_data()) and mint[46] else None


def _receipt(meta: Any, keys: list[Pubkey]) -> Receipt:
    """Return the outcome reported by a node in the VM's form."""
    groups = [[_inner(one, keys) for one in group["instructions"]] for group in meta.get("innerInstructions") or ()]
    reported: dict[str, Any] = {
        "signature": "1" * 64,
        "logs": meta.get("logMessages") or meta.get("logs") or [],
        "inner_instructions": groups,
        "compute_units_consumed": meta.get("computeUnitsConsumed", meta.get("unitsConsumed")),
        "return_data": {"program_id": list(bytes(32)), "data": []},
    }
    if returned := meta.get("returnData"):
        program = list(bytes(Pubkey.from_string(returned["programId"])))
        reported["return_data"] = {"program_id": program, "data": list(base64.b64decode(returned["data"][0]))}
    if meta["err"] is None:
        return receipt(TransactionMetadata.from_json(json.dumps(reported)), keys)
    failed = {"err": meta["err"], "meta": reported}
    return receipt(FailedTransactionMetadata.from_json(json.dumps(failed)), keys)


def _inner(instruction: Any, keys: list[Pubkey]) -> Any:
    if "programId" in instruction:
        # A simulation names keys instead of numbering them, and parses calls of known programs, which then lack data.
        places = {str(key): index for index, key in enumerate(keys)}
        program = places[instruction["programId"]]
        accounts = bytes(places[key] for key in instruction.get("accounts", ()))
    else:
        program, accounts = instruction["programIdIndex"], bytes(instruction["accounts"])
    compiled = CompiledInstruction(program, b58decode(instruction.get("data", "").encode()), accounts)
    return {"instruction": json.loads(compiled.to_json()), "stackHeight": instruction["stackHeight"]}
