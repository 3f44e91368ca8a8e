"""Request and response bodies of recipients."""

from typing import Annotated

from app.api.fields import (
    Category,
    ChainTime,
    ChangeBody,
    ListResponse,
    Page,
    Recipient,
    RecipientShown,
    ResponseBody,
    Warnings,
    example,
)


class PutRecipient(ChangeBody):
    """Body of a registration. If the path names a domain, `address` is required. Otherwise, omit or repeat it."""

    address: Recipient | None = None
    """The address that a domain names. Required for a domain."""
    category: Category | None = None
    """The category of the recipient. If omitted, a registered address keeps its category; a new address is
    `uncategorized`.
    """


class RegisteredRecipient(ResponseBody):
    """The registration of an address or a domain.

    `warnings` reports an address that is a vault, of this or another organisation, because the vault's policy binds the
    money there. The response to a registration also warns about an address without a known owner.
    """

    recipient: RecipientShown
    """The recipient as in the path: an address or a domain."""
    address: RecipientShown
    """The address that is paid."""
    domain: Annotated[str | None, example("shop.example")]
    """The domain that names the address. Null if there is none."""
    category: Annotated[str, example("marketplace")]
    """The category of the recipient."""
    effective_at: ChainTime
    """The time when the rules begin to use this registration."""
    warnings: Warnings
    """Warnings about the address, for example that it is a vault; usually empty. The response to a registration also
    warns about an address without a known owner.
    """


class ListRecipients(Page):
    """Query of the registrations."""


class RecipientPage(ListResponse[RegisteredRecipient]):
    """One page of registrations, the most recently changed first."""
