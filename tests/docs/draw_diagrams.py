"""Draws the diagrams of the guides with mermaid in Chromium, into `app/docs/diagrams`.

Run `python -m tests.docs.draw_diagrams` by hand after a diagram has changed. It needs npm and Chromium. The service
serves the pictures, so its pages need no script for diagrams. A picture's name is the hash of its source.
"""

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from html import unescape
from pathlib import Path

import app.docs
from app.docs.text import diagram_file

_MERMAID = "mermaid@12.3.0"
_FOLDER = Path(app.docs.__file__).parent
_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PAGE = """<!doctype html><meta charset="utf-8"><pre id="out"></pre><script src="mermaid.min.js"></script><script>
mermaid.initialize({startOnLoad: false, htmlLabels: false, flowchart: {htmlLabels: false}, theme: "neutral",
  fontFamily: "system-ui, sans-serif", deterministicIds: true});
mermaid.render("diagram", %s).then(({svg}) => { document.querySelector("#out").textContent = svg; });
</script>"""


def sources() -> list[str]:
    """Return the source of every diagram of the documents."""
    return [found for file in sorted(_FOLDER.rglob("*.md")) for found in _FENCE.findall(file.read_text("utf-8"))]


def _draw(text: str, folder: Path, chromium: str) -> str:
    page = folder / "page.html"
    page.write_text(_PAGE % json.dumps(text), "utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'<pre id="out">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"mermaid drew nothing of:\n{text}"
    return unescape(found[1])


def main() -> None:
    """Draw every diagram, and remove the pictures of diagrams that no document has any more."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not installed"
    wanted = {_FOLDER / diagram_file(text): text for text in sources()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run(["npm", "pack", "--silent", _MERMAID], cwd=folder, check=True, capture_output=True)
        [archive] = folder.glob("*.tgz")
        with tarfile.open(archive) as packed, (folder / "mermaid.min.js").open("wb") as script:
            member = packed.extractfile("package/dist/mermaid.min.js")
            assert member
            shutil.copyfileobj(member, script)
        for file, text in wanted.items():
            file.write_text(_draw(text, folder, chromium) + "\n", "utf-8")
    for file in (_FOLDER / "diagrams").glob("*.svg"):
        if file not in wanted:
            file.unlink()


if __name__ == "__main__":
    main()
