"""An agent of the OpenAI Agents SDK that pays from the vault: `python openai_agent.py "Buy … for 0.05 USDC"`."""

import asyncio
import os
import sys

from agents import Agent, Model, Runner, function_tool
from vault_tools import fetch_paid_url, pay

INSTRUCTIONS = "You pay from a vault with limits. If a payment is refused, follow the remedy and stay within the limit."


async def run(model: str | Model, task: str) -> str:
    """Let the model do a task, and return its last answer."""
    tools = [function_tool(pay), function_tool(fetch_paid_url)]
    agent = Agent("buyer", instructions=INSTRUCTIONS, model=model, tools=tools)
    return str((await Runner.run(agent, task)).final_output)


if __name__ == "__main__":
    print(asyncio.run(run(os.environ["MODEL"], sys.argv[1])))
