"""Options of commands that call the API.

The module imports nothing of the service, so that these commands start quickly.
"""

import click

API_KEY = "AGENT_VAULT_API_KEY"
"""Name of the environment variable with the API key."""
api_url = click.option(
    "--url", envvar="AGENT_VAULT_URL", default="http://127.0.0.1:8402", show_default=True, help="Address of the API."
)
