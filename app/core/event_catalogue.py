"""The event catalogue: the types of events with their severities, meanings, fields and e-mails, from events.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class EventKind:
    """A type of event. ``fields`` are the fields of its payload, in addition to ``timestamp``.

    ``optional`` fields are present only in some cases. ``exception`` states the other severity that an event may have,
    and when: `critical after a dispute`. ``alert`` is the type of alert that sends e-mails about the events, if the
    alert has no threshold. The e-mail has a title, a text, and lines whose `{names}` are fields. Its link is the path
    of a page of the dashboard: by default, the wallet's page or the front page.
    """

    type: str
    severity: str
    meaning: str
    fields: Sequence[str] = ()
    optional: Sequence[str] = ()
    exception: str = ""
    alert: str = ""
    mail_title: str = ""
    mail_text: str = ""
    mail_link: str = ""
    mail_lines: Mapping[str, str] = field(default_factory=dict)


_TEXT = (files("app.core") / "events.toml").read_text("utf-8")
#: Every type of event, by its name.
EVENTS: Mapping[str, EventKind] = {name: EventKind(name, **kind) for name, kind in tomllib.loads(_TEXT).items()}
