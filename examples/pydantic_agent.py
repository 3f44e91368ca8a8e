"""An agent of Pydantic AI that pays from the vault: `python pydantic_agent.py "Buy … for 0.05 USDC"`."""

import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.models import Model
from vault_tools import fetch_paid_url, pay

INSTRUCTIONS = "You pay from a vault with limits. If a payment is refused, follow the remedy and stay within the limit."


async def run(model: str | Model, task: str) -> str:
    """Let the model do a task, and return its last answer."""
    agent = Agent(model, instructions=INSTRUCTIONS, tools=[pay, fetch_paid_url])
    return (await agent.run(task)).output


if __name__ == "__main__":
    print(asyncio.run(run(os.environ["MODEL"], sys.argv[1])))
