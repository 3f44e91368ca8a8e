"""The choice between a wallet's own alert rule and the organisation's."""

from collections.abc import Mapping, Sequence

from app.store.alert_kinds import AlertType
from app.store.alerts import AlertRule

Rules = Mapping[tuple[str, AlertType], AlertRule]
"""Rules by scope, which is a wallet or an organisation, and type."""


def effective(rules: Rules, kind: AlertType, org: str, wallet_id: str | None) -> tuple[AlertRule | None, Sequence[str]]:
    """Return the rule for a wallet, or for an organisation's wallets by default, and the addresses to notify.

    A wallet's rule replaces the organisation's; without addresses of its own it has the organisation's.
    """
    common = rules.get((org, kind))
    rule = rules.get((wallet_id or org, kind)) or common
    addressed = common if rule is None or rule.emails is None else rule
    return rule, (addressed and addressed.emails) or ()
