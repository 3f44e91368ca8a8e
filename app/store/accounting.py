"""Reads the names and labels that an accounting file adds to transactions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select

from app.store.read_tables import TransactionRecord, wallets
from app.store.spending import labels
from app.store.spending_groups import names
from app.store.state_tables import wallet_details

_details = wallet_details.c
_VAULTS = select(_details.wallet_id, wallets.c.vault, _details.label, _details.agent_id)
_VAULTS = _VAULTS.join(wallets, wallets.c.wallet_id == _details.wallet_id)


def names_of(connection: Connection, org: str, found: Sequence[TransactionRecord]) -> dict[str, Mapping[str, str]]:
    """Return the names and labels of an organisation's transactions, by transaction id. Empty texts are left out.

    `vault` and `agent` are the wallet's current label and agent id. `tag`, `budget` and `category` are the labels that
    the transaction has kept: its tags, the name or id of its budget, and the code of the category. `payee` is the
    domain of a registered recipient, or the label of a paid vault.
    """
    wallet_ids, addresses = {one.wallet_id for one in found}, {one.recipient_address or "" for one in found}
    vaults, payees = {}, {}
    mine = _VAULTS.where(wallets.c.org == org, wallets.c.wallet_id.in_(wallet_ids) | wallets.c.vault.in_(addresses))
    for wallet_id, address, label, agent in connection.execute(mine):
        vaults[wallet_id] = {"vault": label, "agent": agent}
        payees[address] = label
    payees |= names(connection, org, "recipient", addresses)
    shown = {one.tx_id: {**vaults.get(one.wallet_id, {})} for one in found}
    kept: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for tx_id, kind, key in connection.execute(
        select(labels.c.tx_id, labels.c.kind, labels.c.key).where(labels.c.tx_id.in_(shown)).order_by(labels.c.key)
    ):
        kept[kind].append((tx_id, key))
    budgets = names(connection, org, "budget", {key for _, key in kept["budget"]})
    for kind, pairs in kept.items():
        for tx_id, key in pairs:
            text = budgets.get(key, key) if kind == "budget" else key
            shown[tx_id][kind] = f"{shown[tx_id][kind]}, {text}" if kind in shown[tx_id] else text
    for one in found:
        shown[one.tx_id]["payee"] = payees.get(one.recipient_address or "")
    return {tx_id: {name: text for name, text in of.items() if text} for tx_id, of in shown.items()}
