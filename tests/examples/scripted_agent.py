"""Runs the example of a framework with a scripted model: `scripted_agent.py NAME PAYEE URL`. Prints its tools' results.

The model pays, is refused, pays the limit that the refusal names, and buys the URL.
"""

import asyncio
import importlib
import json
import re
import sys
from typing import Any

from tests.support import scripted_models

NAME, PAYEE, RESOURCE = sys.argv[1:]
_KEY = "idempotency_key" if NAME == "langchain" else "order"


def next_call(results: list[Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the tool that the model calls next and its arguments, or None at the end."""
    number = len(results)
    key = {_KEY: f"{NAME}-order-number-{number}"}
    if number < 2:
        return "pay", {"to": PAYEE, "amount": ("0.04", "0.06")[number], **key}
    if number == 2:
        limit = re.search(r'\\?"limit\\?": ?\\?"([\d.]+)', json.dumps(results[-1]))
        assert limit is not None, results
        return "pay", {"to": PAYEE, "amount": limit[1], **key}
    return ("fetch_paid_url", {"url": RESOURCE, "max_amount": "0.05", **key}) if number == 3 else None


if __name__ == "__main__":
    results = list[Any]()
    model = getattr(scripted_models, f"{NAME}_model")(next_call, results)
    answer = asyncio.run(importlib.import_module(f"{NAME}_agent").run(model, "Buy the weather."))
    assert answer == scripted_models.DONE, answer
    print(json.dumps([json.dumps(result) for result in results]))
