/** Verification of webhooks. */

import { SignatureInvalid } from "./errors.js";

/** The event of a webhook's request. */
export type WebhookEvent = { event: string; event_id: string; timestamp: string } & Record<string, unknown>;

type Given = Headers | Record<string, string | string[] | undefined>;

/**
 * Return the event of a request, given the body's bytes as received, or throw SignatureInvalid. `secret` is the
 * webhook's `signing_secret`. Handle each `event_id` once, because an event may arrive twice. The time of the request may
 * differ from the receiver's clock by `tolerance` seconds.
 */
export async function verifyWebhook(
  body: Uint8Array,
  headers: Given,
  secret: string,
  { tolerance = 300, now = Date.now() / 1000 }: { tolerance?: number; now?: number } = {},
): Promise<WebhookEvent> {
  const entries = headers instanceof Headers ? [...headers] : Object.entries(headers);
  const given = new Map(entries.map(([name, value]) => [name.toLowerCase(), String(value ?? "")]));
  const stamp = given.get("webhook-timestamp") ?? "";
  if (!/^\d+$/.test(stamp)) throw new SignatureInvalid("The request has no valid header webhook-timestamp.");
  const start = new TextEncoder().encode(`${given.get("webhook-id") ?? ""}.${stamp}.`);
  const signed = new Uint8Array(start.length + body.length);
  signed.set(start);
  signed.set(body, start.length);
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", bytes(secret.replace(/^whsec_/, "")), algorithm, false, ["verify"]);
  let valid = false;
  for (const one of (given.get("webhook-signature") ?? "").split(" ")) {
    if (/^v1,[A-Za-z0-9+/]+=*$/.test(one)) {
      valid = (await crypto.subtle.verify("HMAC", key, bytes(one.slice(3)), signed)) || valid;
    }
  }
  if (!valid) throw new SignatureInvalid("No signature of the request is valid.");
  if (Math.abs(now - Number(stamp)) > tolerance) throw new SignatureInvalid("The time of the request differs too much from this machine's clock.");
  return JSON.parse(new TextDecoder().decode(body)) as WebhookEvent;
}

function bytes(base64: string): Uint8Array<ArrayBuffer> {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    throw new SignatureInvalid("A secret or signature is not base64.");
  }
}
