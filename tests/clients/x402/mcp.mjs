// A client of MCP's public packages that pays by the tool `pay`: node mcp.mjs sdk|client [COMMAND...]
// Without a command it connects over HTTP. Standard input has the arguments of one call a line, standard output the
// structured content of each result. AGENT_VAULT_URL, AGENT_VAULT_API_KEY and AGENT_VAULT_SESSION_TOKEN name the vault.
import readline from "node:readline";

const [name, command, ...args] = process.argv.slice(2);
const { AGENT_VAULT_URL, AGENT_VAULT_API_KEY, AGENT_VAULT_SESSION_TOKEN } = process.env;
const packages = {
  sdk: ["sdk/client/index.js", "sdk/client/stdio.js", "sdk/client/streamableHttp.js"],
  client: ["client", "client/stdio", "client"],
};
const loaded = await Promise.all(packages[name].map((one) => import(`@modelcontextprotocol/${one}`)));
const { Client, StdioClientTransport, StreamableHTTPClientTransport } = Object.assign({}, ...loaded);

const headers = { Authorization: `Bearer ${AGENT_VAULT_API_KEY}`, "Session-Token": AGENT_VAULT_SESSION_TOKEN };
const transport = command
  ? new StdioClientTransport({ command, args, env: process.env })
  : new StreamableHTTPClientTransport(new URL(`${AGENT_VAULT_URL}/mcp`), { requestInit: { headers } });
const client = new Client({ name: "scripted", version: "1" });
await client.connect(transport);
// The client checks results against the schemas that it has listed.
await client.listTools();
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { structuredContent } = await client.callTool({ name: "pay", arguments: JSON.parse(line) });
  console.log(JSON.stringify(structuredContent));
}
await client.close();
