"""Measures the prose of the repository: uses of unidiomatic patterns per 1,000 words, against a budget for each.

    python -m tests.structure.prose              prints a table, and the files far above a budget
    python -m tests.structure.prose PATTERN      prints the lines with one of the patterns

The budgets are two to three times the rates of Polar, Datasette and procrastinate.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATTERNS: Mapping[str, tuple[float, re.Pattern[str]]] = {
    name: (budget, re.compile(pattern))
    for name, budget, pattern in (
        ("what", 1.5, r"(?i)\b(what|whatever|whichever)\b"),
        (
            "relatives together",
            6.0,
            r"(?i)\b(what(ever)?|which(ever)?|whose|whom|who(ever)?|where(ver|by|in)|whenever)\b",
        ),
        ("whose", 0.8, r"(?i)\bwhose\b"),
        ("whoever/nobody/somebody", 0.3, r"(?i)\b(whoever|nobody|somebody|everybody|anybody)\b"),
        ("by/of/under which", 0.8, r"(?i)\b(by|of|under|from|with|in|at|to|after|over) which\b"),
        ("that of/those of", 0.3, r"(?i)\b(that|those) of\b"),
        ("those that/those who", 0.4, r"(?i)\b(those|one|ones) (that|who|which)\b"),
        ("beside", 0.1, r"(?i)\bbeside\b"),
        ("anew/meanwhile", 0.15, r"(?i)\b(anew|meanwhile)\b"),
        ("stands/stood", 0.1, r"(?i)\b(stands?|stood)\b(?! (for|alone|by))"),
        ("that which/things that", 0.1, r"(?i)\b(that which|things? that|all that|everything that|anything that)\b"),
        (", also/also if", 0.1, r"(?i)\balso (if|when|in|after|while|where)\b"),
        ("for it/they (because)", 0.1, r"(?i), for (it|they|he|this|that|there)\b"),
        ("as long/far/many as", 0.3, r"(?i)\bas (long|far|many|few|little) as\b"),
        ("Whether/What opens", 0.8, r"(?m)^\s*(Whether|What|Who|Whose|How much|How many)\b"),
    )
}
#: A file with more than 1,000 words may exceed a budget at most by this factor.
FILE_FACTOR = 4
_LONG_FILE = 1_000
_LONG_SENTENCE = 40


def _python(source: str) -> tuple[str, str]:
    """Return the docstrings and comments of a module, and the sentences among its other strings."""
    tree = ast.parse(source)
    prose = []
    skipped = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                prose.append(one.value.value)
                skipped.add(id(one.value))
    sentences = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
            value = "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            value = node.value
        else:
            continue
        # Keep sentences and phrases. Skip SQL, paths and code.
        code = re.search(r"\b(SELECT|INSERT|UPDATE|CREATE|FROM|WHERE)\b|[{}<>]|::|/v1/", value)
        if len(value.split()) > 3 and not code:
            sentences.append(value)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    prose += [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(prose), "\n".join(sentences)


def markdown(source: str) -> str:
    """Return the text of a document without its code."""
    return re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "", source, flags=re.DOTALL)


def _page(source: str) -> str:
    return re.sub(r"<[^>]*>", " ", re.sub(r"{[{%#].*?[}%#]}", " ", source, flags=re.DOTALL))


def _script(source: str) -> str:
    return "\n".join(a or b for a, b in re.findall(r"//+ ?(.*)|\"([A-Z][^\"]* [^\"]*)\"", source))


def texts() -> Mapping[str, Mapping[str, str]]:
    """Return the texts of the repository by kind and file."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if not path.is_file():
            continue
        if name.startswith(("app/", "indexer/", "idl/")) and name.endswith(".py"):
            kinds["python"][name], kinds["messages"][name] = _python(path.read_text())
        elif name.startswith(("tests/support/", "examples/")) and name.endswith(".py"):
            kinds["python"][name], _ = _python(path.read_text())
        elif name.startswith("programs/") and name.endswith(".rs"):
            source = path.read_text()
            found = re.findall(r"//[/!]? ?(.*)", source) + re.findall(r"#\[msg\(\"(.*?)\"\)", source)
            kinds["rust"][name] = "\n".join(found)
        elif name.startswith("app/dashboard/") and name.endswith((".html", ".js")) and "vendor" not in name:
            kinds["dashboard"][name] = (_page if name.endswith(".html") else _script)(path.read_text())
        elif name.endswith(".md") and not name.startswith("programs/fuzz/"):
            kinds["markdown"][name] = markdown(path.read_text())
    return kinds


def words(text: str) -> int:
    """Return the number of words of a text."""
    return len(re.findall(r"[A-Za-z']+", text))


def _uses(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def above_budget(all_texts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield a line for each rate of a kind of text above its budget."""
    for kind, files in all_texts.items():
        size = sum(map(words, files.values()))
        for name, (budget, pattern) in PATTERNS.items():
            rate = 1_000 * sum(_uses(pattern, text) for text in files.values()) / size
            if rate > budget:
                yield f"{kind}: {name} {rate:.2f} per 1,000 words, budget {budget:.2f}"


def files_far_above_budget(all_texts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield a line for each long file with a rate of ``FILE_FACTOR`` times a budget."""
    for files in all_texts.values():
        for file, text in files.items():
            for name, (budget, pattern) in PATTERNS.items():
                rate = 1_000 * _uses(pattern, text) / max(words(text), 1)
                if words(text) > _LONG_FILE and rate > FILE_FACTOR * budget:
                    yield f"{file}: {name} {rate:.2f} per 1,000 words, budget {budget:.2f}"


def long_sentences(source: str) -> Iterator[str]:
    """Yield the sentences of a document above 40 words. A list item and a table cell end a sentence, too."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", source, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text).replace("**", "")
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"\n\s*([-*] |\d+\. |\||#)", r"\n\n\1", text)
    for part in re.split(r"\n\s*\n|\||[.!?:](?=\s)", text):
        if words(part) > _LONG_SENTENCE:
            yield " ".join(part.split())


def main() -> None:
    found = texts()
    if len(sys.argv) > 1:
        _, pattern = PATTERNS[sys.argv[1]]
        for files in found.values():
            for file, text in files.items():
                for line in filter(pattern.search, text.splitlines()):
                    print(f"{file}: {line.strip()}")
    else:
        print("\n".join([*above_budget(found), *files_far_above_budget(found)]) or "within all budgets")


if __name__ == "__main__":
    main()
