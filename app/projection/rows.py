"""What the projection reads: rows of the chain's database, seen without importing the indexer."""

from typing import Any, Protocol


class ChainRow(Protocol):
    """An event, or another fact that the indexer stored. Addresses in `data` are base58, other bytes hex."""

    @property
    def id(self) -> int:
        """Position in the order of storing."""

    @property
    def signature(self) -> str:
        """Of the transaction."""

    @property
    def instruction(self) -> int:
        """Index of the instruction in the transaction."""

    @property
    def inner(self) -> int:
        """Index of the event among that instruction's inner instructions."""

    @property
    def slot(self) -> int:
        """Slot of the transaction."""

    @property
    def block_time(self) -> int:
        """Unix seconds; 0 when not known."""

    @property
    def fee_payer(self) -> str:
        """Who paid the transaction's fee."""

    @property
    def message_hash(self) -> str:
        """Hex SHA-256 of the signed message."""

    @property
    def name(self) -> str:
        """Name of the event."""

    @property
    def org(self) -> str | None:
        """The organisation it belongs to."""

    @property
    def data(self) -> dict[str, Any]:
        """Fields of the event."""


NO_ADDRESS = "11111111111111111111111111111111"
"""How the program writes that there is no address: 32 zero bytes."""


def address_or_none(text: str) -> str | None:
    """Return the address, or `None` for the program's way to say that there is none."""
    return None if text == NO_ADDRESS else text
