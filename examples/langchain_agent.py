"""A LangChain agent with the vault's MCP tools: `python langchain_agent.py "Buy … for 0.05 USDC"`."""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

INSTRUCTIONS = "You pay from a vault with limits. If a payment is refused, follow the remedy and stay within the limit."
HEADERS = {
    "Authorization": f"Bearer {os.environ['AGENT_VAULT_API_KEY']}",
    "Session-Token": os.environ["AGENT_VAULT_SESSION_TOKEN"],
}
URL = os.environ.get("AGENT_VAULT_URL", "http://127.0.0.1:8402") + "/mcp"


async def run(model: str | BaseChatModel, task: str) -> str:
    """Let the model do a task, and return its last answer."""
    servers = MultiServerMCPClient({"vault": {"transport": "streamable_http", "url": URL, "headers": HEADERS}})
    async with servers.session("vault") as session:
        agent = create_agent(model, await load_mcp_tools(session), system_prompt=INSTRUCTIONS)
        done = await agent.ainvoke({"messages": [("user", task)]})
    return str(done["messages"][-1].text)


if __name__ == "__main__":
    print(asyncio.run(run(os.environ["MODEL"], sys.argv[1])))
