"""Writes the date of the last change of each document into `app/docs/edited.json`.

Run `python -m tests.docs.date_documents` by hand after a document has changed. A page shows a date only while its
document has the digest that is stored with the date.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import app.docs
from app.docs.layout import GUIDES, digest_of

_FILE = Path(app.docs.__file__).parent / "edited.json"


def dated() -> list[str]:
    """Return the files in `app/docs` that get a date."""
    return ["start.md", "reference.md", *(f"guides/{name}.md" for name in GUIDES)]


def main() -> None:
    """Date the documents that have changed."""
    known = json.loads(_FILE.read_text(encoding="utf-8"))
    today = datetime.now(UTC).date().isoformat()
    found = {file: digest_of(file) for file in dated()}
    dates = {file: known[file] if known.get(file, [""])[0] == one else [one, today] for file, one in found.items()}
    _FILE.write_text(json.dumps(dates, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
