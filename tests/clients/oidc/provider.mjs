// A certified OpenID provider, whose page signs in every name that is typed:
//   PORT=8520 CLIENT_ID=vault CLIENT_SECRET=secret REDIRECT_URI=http://localhost:8402/dashboard/openid/return node provider.mjs
import { once } from "node:events";
import Provider from "oidc-provider";

const { PORT, CLIENT_ID, CLIENT_SECRET, REDIRECT_URI } = process.env;
const issuer = `http://127.0.0.1:${PORT}`;
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: CLIENT_ID,
      client_secret: CLIENT_SECRET,
      redirect_uris: [REDIRECT_URI],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  cookies: { keys: [CLIENT_SECRET] },
  pkce: { required: () => true },
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
  // A company's own services ask for no consent.
  loadExistingGrant: async ({ oidc }) => {
    const grant = new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId });
    grant.addOIDCScope("openid");
    await grant.save();
    return grant;
  },
});

const page = `<!doctype html><html lang="en"><title>Company</title><h1>Company</h1>
<form method="post"><label>Account <input name="login" autofocus></label><button>Log in</button>
<button name="cancel" value="yes">Cancel</button></form>`;

provider.use(async (ctx, next) => {
  if (!ctx.path.startsWith("/interaction/")) return next();
  if (ctx.method === "GET") {
    ctx.type = "html";
    ctx.body = page;
    return undefined;
  }
  let body = "";
  ctx.req.on("data", (chunk) => (body += chunk));
  await once(ctx.req, "end");
  const fields = new URLSearchParams(body);
  const result = fields.get("cancel") ? { error: "access_denied" } : { login: { accountId: fields.get("login") } };
  return provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: false });
});
provider.listen(Number(PORT), "127.0.0.1", () => console.log("provider", issuer));
