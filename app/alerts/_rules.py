"""The choice between a wallet's own alert rule and the rule of its organisation."""

from collections.abc import Mapping, Sequence

from app.store.alert_kinds import AlertType
from app.store.alerts import AlertRule

Rules = Mapping[tuple[str, AlertType], AlertRule]
"""Rules by scope (a wallet or an organisation) and type."""


def effective(rules: Rules, kind: AlertType, org: str, wallet_id: str | None) -> tuple[AlertRule | None, Sequence[str]]:
    """Return the rule that applies to a wallet, or None if there is none, and the addresses to notify.

    A wallet's rule replaces the rule of the organisation. If the `emails` of the wallet's rule are None, the
    organisation's addresses are returned. If `wallet_id` is None, the organisation's rule is returned.
    """
    common = rules.get((org, kind))
    rule = rules.get((wallet_id or org, kind)) or common
    addressed = common if rule is None or rule.emails is None else rule
    return rule, (addressed and addressed.emails) or ()
