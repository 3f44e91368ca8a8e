# Everyday tasks; `just` lists them. Neither the README's commands nor .ci/run need this file.

set positional-arguments

venv := ".venv/bin"
lock := "--upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url"

_default:
    @just --list

# Check style, types, layers and the Rust crates
check:
    {{venv}}/ruff check .
    {{venv}}/ruff format --check .
    {{venv}}/mypy
    {{venv}}/lint-imports
    cd programs && cargo fmt --check
    cd programs && cargo clippy --quiet --locked --all-targets -- -D warnings
    cd programs && cargo test --quiet --locked

# Run the tests, or those given: just test tests/api -k freeze
test *arguments:
    {{venv}}/pytest "$@"

# Run the tests with the long figures
test-full *arguments:
    {{venv}}/pytest --full "$@"

# Generate the types and operations of the clients from the models
clients *arguments:
    {{venv}}/python -m tests.clients.generate "$@"

# Renew the lock files; needs uv
lock:
    uv pip compile -q {{lock}} -o requirements.lock pyproject.toml
    uv pip compile -q {{lock}} --extra test --extra dev -o requirements-test.lock pyproject.toml
    for one in mcp1 mcp2; do uv pip compile -q {{lock}} -o tests/mcp/requirements/$one.lock tests/mcp/requirements/$one.in; done

# Build the program and its IDL from source (Debian 12)
program:
    programs/toolchain/build

# Run a benchmark: compute_units, throughput, indexer or reads
bench name *arguments:
    shift; {{venv}}/python -m "tests.bench.{{name}}" "$@"
