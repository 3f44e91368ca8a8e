"""Instructions in the RPC's `jsonParsed` form: System, both token programs, Associated Token, Memo.

The names follow Agave's `transaction-status`. Malformed instructions and extensions of Token-2022 are not parsed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from solders.pubkey import Pubkey

from app.localnet.tokens import PROGRAM_NAMES, ui_amount
from app.localnet.transactions import MEMO_PROGRAMS

Json = dict[str, Any]

_SYSTEM = Pubkey.default()
_ASSOCIATED = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
_AUTHORITIES = ("mintTokens", "freezeAccount", "accountOwner", "closeAccount")
_OF_ACCOUNT = ("accountOwner", "closeAccount")


class _Malformed(Exception):  # noqa: N818 - internal; it means that the instruction is shown unparsed
    """The bytes or accounts do not match the instruction."""


class _Data:
    """Reads an instruction's data from start to end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes. Raises _Malformed if there are fewer."""
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise _Malformed
        self._at += size
        return part

    def u8(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def u32(self) -> int:
        """Return a little-endian number of 4 bytes."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """Return a little-endian number of 8 bytes."""
        return int.from_bytes(self.take(8), "little")

    def address(self) -> str:
        """Return an address."""
        return str(Pubkey.from_bytes(self.take(32)))

    def option(self) -> str | None:
        """Return an optional address: a byte, zero if there is no address, then the address."""
        return self.address() if self.u8() else None

    def text(self) -> str:
        """Return a text that follows its length in 8 bytes."""
        try:
            return self.take(self.u64()).decode()
        except (UnicodeDecodeError, OverflowError):
            raise _Malformed from None

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        return self._data[self._at :]


Fields = Callable[[_Data], Json]
"""Reads the fields of the parsed form that come from the instruction's data."""


def _none(_data: _Data) -> Json:
    return {}


def _amount(data: _Data) -> Json:
    return {"amount": str(data.u64())}


def _token_amount(data: _Data) -> Json:
    amount = data.u64()
    return {"tokenAmount": ui_amount(amount, data.u8())}


def _mint(data: _Data) -> Json:
    found: Json = {"decimals": data.u8(), "mintAuthority": data.address()}
    freezer = data.option()
    return found if freezer is None else found | {"freezeAuthority": freezer}


def _authority(data: _Data) -> Json:
    kind = data.u8()
    if kind >= len(_AUTHORITIES):
        raise _Malformed
    return {"authorityType": _AUTHORITIES[kind], "newAuthority": data.option()}


def _lamports(data: _Data) -> Json:
    return {"lamports": data.u64()}


def _space(data: _Data) -> Json:
    return {"space": data.u64()}


def _owner(data: _Data) -> Json:
    return {"owner": data.address()}


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Malformed from None


def _seeded(data: _Data) -> Json:
    return {"base": data.address(), "seed": data.text()}


@dataclass(frozen=True, slots=True)
class _Form:
    """An instruction's type, the names of its accounts, its data, and the account that signs for it.

    ``signer`` comes after the named accounts. If more accounts follow, ``signer`` is a multisig, and those accounts are
    its signers.
    """

    type: str
    accounts: tuple[str, ...] = ()
    data: Fields = _none
    signer: str | None = None

    def parsed(self, data: _Data, accounts: Sequence[str]) -> Json:
        """Return the parsed form. Raises _Malformed if accounts are missing or the data does not match."""
        count = len(self.accounts)
        if len(accounts) < count + (self.signer is not None):
            raise _Malformed
        info: Json = {**dict(zip(self.accounts, accounts, strict=False)), **self.data(data)}
        if self.signer is not None:
            signers = list(accounts[count + 1 :])
            if signers:
                info |= {f"multisig{self.signer[0].upper()}{self.signer[1:]}": accounts[count], "signers": signers}
            else:
                info[self.signer] = accounts[count]
        return {"type": self.type, "info": info}


_RENT, _BLOCKHASHES = "rentSysvar", "recentBlockhashesSysvar"

_SYSTEM_FORMS: Mapping[int, _Form] = {
    0: _Form("createAccount", ("source", "newAccount"), lambda d: _lamports(d) | _space(d) | _owner(d)),
    1: _Form("assign", ("account",), _owner),
    2: _Form("transfer", ("source", "destination"), _lamports),
    3: _Form(
        "createAccountWithSeed",
        ("source", "newAccount"),
        lambda d: _seeded(d) | _lamports(d) | _space(d) | _owner(d),
    ),
    4: _Form("advanceNonce", ("nonceAccount", _BLOCKHASHES, "nonceAuthority")),
    5: _Form("withdrawFromNonce", ("nonceAccount", "destination", _BLOCKHASHES, _RENT, "nonceAuthority"), _lamports),
    6: _Form("initializeNonce", ("nonceAccount", _BLOCKHASHES, _RENT), lambda d: {"nonceAuthority": d.address()}),
    7: _Form("authorizeNonce", ("nonceAccount", "nonceAuthority"), lambda d: {"newAuthorized": d.address()}),
    8: _Form("allocate", ("account",), _space),
    9: _Form("allocateWithSeed", ("account",), lambda d: _seeded(d) | _space(d) | _owner(d)),
    10: _Form("assignWithSeed", ("account",), lambda d: _seeded(d) | _owner(d)),
    11: _Form(
        "transferWithSeed",
        ("source", "sourceBase", "destination"),
        lambda d: _lamports(d) | {"sourceSeed": d.text(), "sourceOwner": d.address()},
    ),
    12: _Form("upgradeNonce", ("nonceAccount",)),
}

_TOKEN_FORMS: Mapping[int, _Form] = {
    0: _Form("initializeMint", ("mint", _RENT), _mint),
    1: _Form("initializeAccount", ("account", "mint", "owner", _RENT)),
    3: _Form("transfer", ("source", "destination"), _amount, "authority"),
    4: _Form("approve", ("source", "delegate"), _amount, "owner"),
    5: _Form("revoke", ("source",), signer="owner"),
    7: _Form("mintTo", ("mint", "account"), _amount, "mintAuthority"),
    8: _Form("burn", ("account", "mint"), _amount, "authority"),
    9: _Form("closeAccount", ("account", "destination"), signer="owner"),
    10: _Form("freezeAccount", ("account", "mint"), signer="freezeAuthority"),
    11: _Form("thawAccount", ("account", "mint"), signer="freezeAuthority"),
    12: _Form("transferChecked", ("source", "mint", "destination"), _token_amount, "authority"),
    13: _Form("approveChecked", ("source", "mint", "delegate"), _token_amount, "owner"),
    14: _Form("mintToChecked", ("mint", "account"), _token_amount, "mintAuthority"),
    15: _Form("burnChecked", ("account", "mint"), _token_amount, "authority"),
    16: _Form("initializeAccount2", ("account", "mint", _RENT), _owner),
    17: _Form("syncNative", ("account",)),
    18: _Form("initializeAccount3", ("account", "mint"), _owner),
    20: _Form("initializeMint2", ("mint",), _mint),
    22: _Form("initializeImmutableOwner", ("account",)),
    23: _Form("amountToUiAmount", ("mint",), _amount),
    24: _Form("uiAmountToAmount", ("mint",), lambda d: {"uiAmount": _utf8(d.rest())}),
}
_SET_AUTHORITY, _DATA_SIZE = 6, 21
_EXTENSIONS = (
    "uninitialized",
    "transferFeeConfig",
    "transferFeeAmount",
    "mintCloseAuthority",
    "confidentialTransferMint",
    "confidentialTransferAccount",
    "defaultAccountState",
    "immutableOwner",
    "memoTransfer",
    "nonTransferable",
    "interestBearingConfig",
    "cpiGuard",
    "permanentDelegate",
    "nonTransferableAccount",
    "transferHook",
    "transferHookAccount",
    "confidentialTransferFeeConfig",
    "confidentialTransferFeeAmount",
    "metadataPointer",
    "tokenMetadata",
)
_MULTISIGS = {2: ("initializeMultisig", True), 19: ("initializeMultisig2", False)}

_CREATED = ("source", "account", "wallet", "mint", "systemProgram", "tokenProgram")
_NESTED = ("nestedSource", "nestedMint", "destination", "nestedOwner", "ownerMint", "wallet", "tokenProgram")
_ASSOCIATED_FORMS: Mapping[int, _Form] = {
    0: _Form("create", _CREATED),
    1: _Form("createIdempotent", _CREATED),
    2: _Form("recoverNested", _NESTED),
}


def parsed_instruction(program: str, accounts: Sequence[str], data: bytes) -> Json | None:
    """Return `program` and `parsed` of an instruction, or None for an unknown program or a malformed instruction."""
    address = Pubkey.from_string(program)
    try:
        if address == _SYSTEM:
            reader = _Data(data)
            return {"program": "system", "parsed": _of(_SYSTEM_FORMS, reader.u32()).parsed(reader, accounts)}
        if address in PROGRAM_NAMES:
            # A validator uses this name for both token programs.
            return {"program": "spl-token", "parsed": _token(_Data(data), accounts)}
        if address == _ASSOCIATED:
            form = _of(_ASSOCIATED_FORMS, data[0] if data else 0)
            return {"program": "spl-associated-token-account", "parsed": form.parsed(_Data(b""), accounts)}
        if address in MEMO_PROGRAMS:
            return {"program": "spl-memo", "parsed": _utf8(data)}
    except _Malformed:
        pass
    return None


def _extensions(data: _Data) -> Json:
    names = []
    while data.rest():
        number = int.from_bytes(data.take(2), "little")
        if number >= len(_EXTENSIONS):
            raise _Malformed
        names.append(_EXTENSIONS[number])
    return {"extensionTypes": names} if names else {}


def _token(data: _Data, accounts: Sequence[str]) -> Json:
    tag = data.u8()
    if tag == _SET_AUTHORITY:
        fields = _authority(data)
        owned = "account" if fields["authorityType"] in _OF_ACCOUNT else "mint"
        return _Form("setAuthority", (owned,), lambda _data: fields, "authority").parsed(data, accounts)
    if tag in _MULTISIGS:
        kind, rent = _MULTISIGS[tag]
        form = _Form(kind, ("multisig", _RENT) if rent else ("multisig",), lambda d: {"m": d.u8()})
        shown = form.parsed(data, accounts)
        shown["info"]["signers"] = list(accounts[len(form.accounts) :])
        return shown
    if tag == _DATA_SIZE:
        return _Form("getAccountDataSize", ("mint",), _extensions).parsed(data, accounts)
    return _of(_TOKEN_FORMS, tag).parsed(data, accounts)


def _of(forms: Mapping[int, _Form], tag: int) -> _Form:
    form = forms.get(tag)
    if form is None:
        raise _Malformed
    return form
