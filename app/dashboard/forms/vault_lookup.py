"""Finds vaults by a typed name, agent id, vault id or address, and returns the names of addresses."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from sqlalchemy import Connection

from app.api.forms import validated
from app.core.errors import RequestError
from app.dashboard.pages import View
from app.store.fleet import FleetFilter
from app.store.fleet import fleet as vaults
from app.store.spending_groups import names
from app.store.wallets import WalletRecord, labels, wallet
from app.wallets import fleet
from app.wallets.fleet import FleetQuery

#: Maximum number of suggested vaults. Others are found by a part of their name.
_SUGGESTED = 500


async def vault_named(view: View, field: str) -> WalletRecord:
    """Return the vault that matches a field's text, such as part of a name. Raises ``invalid_request``.

    If several vaults match, returns the only match with exactly this name or agent id. An archived vault is found only
    by its id.
    """
    text = view.typed(field).strip()
    if not text:
        raise RequestError("invalid_request", f"{field}: This field is required.")
    org, now, query = view.principal.org, view.service.clock.seen_ms(), validated(FleetQuery, {"q": text[:100]})
    by_id = await view.service.db.read(lambda conn: wallet(conn, org, text, now))
    if by_id is not None:
        return by_id
    found, count = await view.service.db.read(lambda conn: fleet.page_of(conn, org, now, query), in_thread=True)
    exact = [one for one in found if text in (one.label, one.agent_id)]
    matching = exact if len(exact) == 1 else found
    if len(matching) != 1:
        says = (
            f"{count:,} vaults match. Type the id of one."
            if found
            else "No vault matches. An archived vault is found only by its id."
        )
        raise RequestError("invalid_request", f"{field}: {says}")
    return matching[0]


async def vault_choices(view: View) -> list[str]:
    """Return names or ids of vaults for a field's list of suggestions, newest first, at most 500."""
    org, now = view.principal.org, view.service.clock.seen_ms()
    query = partial(vaults, narrowed=FleetFilter(), order="created", descending=True, limit=_SUGGESTED, offset=0)
    found, _ = await view.service.db.read(lambda conn: query(conn, org, now), in_thread=True)
    return [one.label or one.wallet_id for one in found]


async def labelled(view: View, read_ids: Callable[[Connection], Sequence[str]]) -> list[tuple[str, str]]:
    """Return the id and label of each vault that ``read_ids`` returns, in the same order."""

    def read(conn: Connection) -> list[tuple[str, str]]:
        ids = read_ids(conn)
        named = labels(conn, ids)
        return [(one, named.get(one) or one) for one in ids]

    return await view.service.db.read(read)


async def payee_names(view: View, payees: Iterable[str | None]) -> dict[str, str]:
    """Return the names of those addresses that have one: the label of a vault, or the registered domain."""
    org, keys = view.principal.org, {one for one in payees if one}
    return await view.service.db.read(lambda conn: names(conn, org, "payee", keys)) if keys else {}
