"""Distribution of tests among the processes of `pytest -n`."""

from xdist.scheduler import LoadScopeScheduling

#: Tests that share a resource which only one process may use: a compiler's cache, or a core that a validator occupies.
TOOLCHAIN = ("tests/toolchain/",)
VALIDATOR = (
    "tests/validator/",
    "tests/test_flow.py",
    "tests/localnet/test_differences.py",
    "tests/localnet/test_parsed_instructions.py",
)


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process whole files in the order of collection, because the tests of a file share a service."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((together[0] for together in (TOOLCHAIN, VALIDATOR) if path.startswith(together)), path)
