"""A request of each operation with example values: in curl and with the clients for Python and TypeScript."""

import json
import re
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

_JSON = "application/json"
#: The noun in the ids of a tag's operations, for each tag that does not simply add an `s` to its noun.
_SINGULAR = {"policies": "policy", "people": "people", "audit": "audit", "x402": "x402", "organization": "organization"}
_FIELD = re.compile(r"[a-z]+(?:[A-Z0-9][a-z0-9]*)*")
_NEW_KEY = "$(openssl rand -hex 16)"


def client_method(tag: str, operation_id: str) -> str:
    """Return a method's name in the Python client: the operation's id without the tag's noun.

    For example, `create_wallet` becomes `create`, because the client calls it as `wallets.create`.
    """
    noun = _SINGULAR.get(tag, tag.removesuffix("s"))
    plural = operation_id.removesuffix(f"_{tag}")
    return plural if plural in {"list", "get"} else operation_id.removesuffix(f"_{noun}")


def snake_case(name: str) -> str:
    """Return a request field's name in Python, in snake case. `from` becomes `from_`, because `from` is a keyword.

    The service accepts the names in camel case and in snake case.
    """
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return f"{snake}_" if snake == "from" else snake


def camel_case(name: str) -> str:
    """Return a snake-case name in camel case, for TypeScript."""
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


class Sample:
    """A sample request of an operation, with example values for its path parameters and its body.

    With ``rows``, the operation returns a list, and the sample prints one row at a time.
    """

    def __init__(self, path: str, method: str, operation: Json, *, rows: bool) -> None:
        self._path, self._method, self._operation = path, method, operation
        taken = operation["parameters"]
        self._headers = {one["name"] for one in taken if one["in"] == "header"}
        self._given = {one["name"]: one["schema"]["examples"][0] for one in taken if one["in"] == "path"}
        media = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
        self._has_body = media.get("schema", {}).get("$ref", "/EmptyBody").rpartition("/")[2] != "EmptyBody"
        self._body = media.get("example")
        self._rows = rows

    def curl(self) -> str:
        """Return the request as a shell command."""
        path = self._path.format_map(self._given)
        parts = [f'curl -sS{self._verb()} "$URL{path}"', '-H "Authorization: Bearer $KEY"']
        if "Session-Token" in self._headers:
            parts.append('-H "Session-Token: $TOKEN"')
        if "Idempotency-Key" in self._headers:
            parts.append(f'-H "Idempotency-Key: {_NEW_KEY}"')
        if self._body:
            parts += ['-H "Content-Type: application/json"', f"-d '{json.dumps(self._body, indent=2)}'"]
        return " \\\n  ".join(parts)

    def _verb(self) -> str:
        usual = "post" if self._body else "get"
        return "" if self._method == usual else f" -X {self._method.upper()}"

    def python(self) -> str:
        """Return the request with the client for Python."""
        session = "Session-Token" in self._headers
        client, name, keys = (
            ("Vault", "vault", 'os.environ["KEY"], os.environ["TOKEN"]')
            if session
            else ("Admin", "admin", 'os.environ["KEY"]')
        )
        fields = [f"{snake_case(field)}={_python(value)}" for field, value in (self._body or {}).items()]
        call = _call(self._member(), [*map(_python, self._given.values()), *fields])
        return (
            f"import os\n\nfrom agent_vault_client import {client}\n\n"
            f'{name} = {client}({keys}, base_url=os.environ["URL"])\n'
            + self._shown(f"for row in {name}.{call}:\n    print(row)", f"print({name}.{call})")
        )

    def typescript(self) -> str:
        """Return the request with the client for TypeScript."""
        session = "Session-Token" in self._headers
        client, name, keys = ("Vault", "vault", "env.KEY!, env.TOKEN!") if session else ("Admin", "admin", "env.KEY!")
        body = [json.dumps(self._body or {}, indent=2)] if self._has_body else []
        body = [re.sub(r'^(\s*)"([a-zA-Z]\w*)":', r"\1\2:", one, flags=re.MULTILINE) for one in body]
        call = f"{camel_case(self._member())}({', '.join([*map(json.dumps, self._given.values()), *body])})"
        return (
            f'import {{ env }} from "node:process";\nimport {{ {client} }} from "agent-vault-client";\n\n'
            f"const {name} = new {client}({keys}, {{ baseUrl: env.URL! }});\n"
            + self._shown(
                f"for await (const row of {name}.{call}) console.log(row);", f"console.log(await {name}.{call});"
            )
        )

    def _member(self) -> str:
        tag = self._operation["tags"][0].replace("-", "_")
        return f"{tag}.{client_method(tag, self._operation['operationId'])}"

    def _shown(self, many: str, one: str) -> str:
        return many if self._rows else one


def _python(value: Any) -> str:
    """Return a JSON value as a Python literal."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        fields = ((snake_case(key) if _FIELD.fullmatch(key) else key, one) for key, one in value.items())
        return "{" + ", ".join(f"{_python(key)}: {_python(one)}" for key, one in fields) + "}"
    return f"[{', '.join(map(_python, value))}]" if isinstance(value, list) else repr(value)


def _call(member: str, arguments: list[str]) -> str:
    line = f"{member}({', '.join(arguments)})"
    return line if len(line) < 70 else f"{member}(\n    " + ",\n    ".join(arguments) + ",\n)"
