"""Formats results as Markdown tables."""

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first column aligned left and the others right."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |\n"

    dashes = ["-" * width for width in widths]
    rule = "|" + "|".join([f"-{dashes[0]}-", *(f"-{dash}:" for dash in dashes[1:])]) + "|\n"
    return line(heads) + rule + "".join(line(row) for row in rows) + "\n"
