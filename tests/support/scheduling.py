"""How `pytest -n` deals tests out to its processes."""

from xdist.scheduler import LoadScopeScheduling

#: What shares something that only one process may use: a compiler's cache, a core that a validator keeps busy.
TOOLCHAIN = ("tests/toolchain/",)
VALIDATOR = ("tests/validator/", "tests/test_flow.py", "tests/localnet/test_parsed_instructions.py")


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process whole files, whose tests share a service, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((together[0] for together in (TOOLCHAIN, VALIDATOR) if path.startswith(together)), path)
