/**
 * Uses a vault directly: reads it, pays from it, is refused by its policy, and reads the program's events.
 *
 * Needs the IDL, the vault's session key, the address of a Solana node and the package @anchor-lang/core, and nothing
 * else of Agent Vault. The session key also pays the fees, so its address needs some SOL.
 */
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { AnchorProvider, BN, EventParser, Program, Wallet, utils, web3 } from "@anchor-lang/core";
import type { Event, Idl } from "@anchor-lang/core";

/** The first bytes of an inner instruction that carries an event. */
const EVENT_TAG = Buffer.from("e445a52e51cb9a1d", "hex");
const ASSOCIATED_TOKEN_PROGRAM = utils.token.ASSOCIATED_PROGRAM_ID;
/** Number of that program's instruction that does nothing if the account already exists. */
const CREATE_IDEMPOTENT = 1;

const { Connection, Keypair, PublicKey, SendTransactionError, SystemProgram, TransactionInstruction } = web3;
type PublicKey = web3.PublicKey;

/** The fields used here. The IDL is read at run time, so the compiler does not know them. */
interface VaultAccount {
  org: PublicKey;
  policy: PublicKey;
  budget: PublicKey;
  tokens: PublicKey;
  sessionAuthority: PublicKey;
  sequence: BN;
}
interface OrgAccount {
  mint: PublicKey;
  tokenProgram: PublicKey;
}
interface BudgetAccount {
  parent: PublicKey;
}
interface PolicyAccount {
  allowlist: PublicKey;
}

/** The SHA-256 of an address without the highest bit of each byte, as text. */
function ascii(key: PublicKey): string {
  const digest = createHash("sha256").update(key.toBytes()).digest();
  return String.fromCharCode(...digest.map((byte) => byte & 0x7f));
}

/** The program refused, with the code of an error of the IDL or of Anchor. */
class Refused extends Error {
  readonly code: number;
  readonly logs: string[];

  constructor(code: number, logs: string[]) {
    super(`the program refused with error ${code}`);
    this.code = code;
    this.logs = logs;
  }
}

/** A vault, and the session key that pays from it. */
class VaultClient {
  private readonly program: Program;
  private readonly provider: AnchorProvider;
  private readonly vault: PublicKey;

  constructor(program: Program, provider: AnchorProvider, vault: PublicKey) {
    this.program = program;
    this.provider = provider;
    this.vault = vault;
  }

  /** Returns the fields of the vault's account, and its balance in micro-USDC. */
  async read() {
    const vault = await this.fetch<VaultAccount>("vault", this.vault);
    const { value: balance } = await this.provider.connection.getTokenAccountBalance(vault.tokens);
    const { org, policy, sessionAuthority, sequence } = vault;
    return { ...(shown({ org, policy, sessionAuthority, sequence }) as object), balance: balance.amount };
  }

  /**
   * Pays micro-USDC to the associated token account of `to`, creating the account if necessary.
   *
   * Throws Refused if the program refused the payment; then nothing was sent.
   */
  async pay(to: PublicKey, amount: BN): Promise<string> {
    const programId = this.program.programId;
    const none = programId; // represents an absent account
    const session = this.provider.publicKey;
    const vault = await this.fetch<VaultAccount>("vault", this.vault);
    const { mint, tokenProgram } = await this.fetch<OrgAccount>("org", vault.org);
    const { allowlist } = await this.fetch<PolicyAccount>("policy", vault.policy);
    const budget = vault.budget.equals(PublicKey.default) ? none : vault.budget;
    const parent = budget === none ? none : (await this.fetch<BudgetAccount>("budget", vault.budget)).parent;
    const destination = address(ASSOCIATED_TOKEN_PROGRAM, to.toBuffer(), tokenProgram.toBuffer(), mint.toBuffer());
    const createDestination = new TransactionInstruction({
      programId: ASSOCIATED_TOKEN_PROGRAM,
      keys: [
        { pubkey: session, isSigner: true, isWritable: true },
        { pubkey: destination, isSigner: false, isWritable: true },
        { pubkey: to, isSigner: false, isWritable: false },
        { pubkey: mint, isSigner: false, isWritable: false },
        { pubkey: SystemProgram.programId, isSigner: false, isWritable: false },
        { pubkey: tokenProgram, isSigner: false, isWritable: false },
      ],
      data: Buffer.from([CREATE_IDEMPOTENT]),
    });
    // Anchor derives the other accounts from these by the IDL.
    const accounts = {
      signer: session,
      vault: this.vault,
      destination,
      allowlist: allowlist.equals(PublicKey.default) ? none : allowlist,
      // This account need not exist: then the program treats the recipient as uncategorised.
      recipient: await PublicKey.createWithSeed(vault.org, ascii(to), programId),
      coSigner: none,
      approval: none,
      approvalRentReceiver: none,
      budget,
      budgetParent: parent.equals(PublicKey.default) ? none : parent,
    };
    const executePayment = this.program.methods["executePayment"];
    if (executePayment === undefined) throw new Error("the IDL has no execute_payment");
    try {
      return await executePayment(amount, [...randomBytes(16)])
        .accountsPartial(accounts)
        .preInstructions([createDestination])
        .rpc();
    } catch (error) {
      throw this.refusal(error) ?? error;
    }
  }

  /**
   * Returns the program's error that made a transaction fail in its simulation, or null if something else failed.
   *
   * Reads the runtime's log line about the program: Anchor recognises only errors of programs that log their names,
   * which this one does not, to save bytes.
   */
  private refusal(error: unknown): Refused | null {
    if (!(error instanceof SendTransactionError) || error.logs === undefined) return null;
    const failed = `Program ${this.program.programId.toBase58()} failed: custom program error: `;
    const line = error.logs.find((line) => line.startsWith(failed));
    return line === undefined ? null : new Refused(Number(line.slice(failed.length)), error.logs);
  }

  /**
   * Returns the program's events in a confirmed transaction.
   *
   * Only the program can create the inner instructions that carry them. A failed transaction changed nothing and so
   * has no events.
   */
  async events(signature: string): Promise<Event[]> {
    const found = await this.provider.connection.getTransaction(signature, {
      commitment: "confirmed",
      maxSupportedTransactionVersion: 0,
    });
    if (found === null) throw new Error(`the node does not have transaction ${signature}`);
    const { meta, transaction } = found;
    if (meta === null || meta.err !== null) return [];
    const keys = transaction.message.getAccountKeys({ accountKeysFromLookups: meta.loadedAddresses ?? null });
    return (meta.innerInstructions ?? [])
      .flatMap((inner) => inner.instructions)
      .filter((instruction) => keys.get(instruction.programIdIndex)?.equals(this.program.programId))
      .map((instruction) => utils.bytes.bs58.decode(instruction.data))
      .filter((data) => data.subarray(0, EVENT_TAG.length).equals(EVENT_TAG))
      .map((data) => this.program.coder.events.decode(data.subarray(EVENT_TAG.length).toString("base64")))
      .filter((event) => event !== null);
  }

  /** Returns the vault's events, oldest first, from its newest 1,000 transactions. */
  async history(): Promise<Event[]> {
    const found = await this.provider.connection.getSignaturesForAddress(this.vault, {}, "confirmed");
    const events: Event[] = [];
    for (const { signature, err } of found.reverse()) {
      if (err === null) events.push(...(await this.events(signature)));
    }
    return events.filter((event) => event.data.vault?.equals(this.vault));
  }

  /**
   * Returns the `PolicyViolation` in the logs of a refusal, or null if no rule of a policy refused.
   *
   * Any program may log any line, but the parser reads only those that the program itself logged.
   */
  violation(logs: string[]): Event | null {
    const logged = new EventParser(this.program.programId, this.program.coder).parseLogs(logs);
    return [...logged].find((event) => event.name === "policyViolation") ?? null;
  }

  private async fetch<T>(name: "budget" | "org" | "policy" | "vault", at: PublicKey): Promise<T> {
    const accounts = this.program.account as Record<string, { fetch(at: PublicKey): Promise<unknown> }>;
    const account = accounts[name];
    if (account === undefined) throw new Error(`the IDL has no account ${name}`);
    return (await account.fetch(at)) as T;
  }
}

/** Returns the address that a program derives from seeds. */
function address(program: PublicKey, ...seeds: Buffer[]): PublicKey {
  return PublicKey.findProgramAddressSync(seeds, program)[0];
}

/**
 * Returns a value of the program as JSON: addresses in base58, bytes in hex, integers as decimal strings, because many
 * JSON parsers lose the last digits of 64-bit integers.
 */
function shown(value: unknown): unknown {
  if (value === null || typeof value === "boolean") return value;
  if (value instanceof PublicKey) return value.toBase58();
  if (BN.isBN(value) || typeof value !== "object") return String(value);
  if (Array.isArray(value)) return Buffer.from(value).toString("hex"); // the only arrays in events are of bytes
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, shown(field)]));
}

async function main(): Promise<void> {
  const option = { type: "string", default: "" } as const;
  const { values: options } = parseArgs({
    options: {
      idl: option, // path of idl/agent_vault.json
      "rpc-url": option,
      keypair: option, // path of the session key, a file in solana-keygen's format
      vault: option, // address of the vault
      to: option, // owner of the account to pay
      amount: option, // micro-USDC that the policy allows
      "too-much": option, // micro-USDC that the policy refuses
    },
  });
  for (const [name, value] of Object.entries(options)) if (value === "") throw new Error(`--${name} is missing`);

  const idl = JSON.parse(readFileSync(options.idl, "utf8")) as Idl;
  const session = Keypair.fromSecretKey(Uint8Array.from(JSON.parse(readFileSync(options.keypair, "utf8"))));
  const commitment = { commitment: "confirmed", preflightCommitment: "confirmed" } as const;
  const connection = new Connection(options["rpc-url"], "confirmed");
  const provider = new AnchorProvider(connection, new Wallet(session), commitment);
  const client = new VaultClient(new Program(idl, provider), provider, new PublicKey(options.vault));
  const to = new PublicKey(options.to);

  const vault = await client.read();
  const signature = await client.pay(to, new BN(options.amount));
  const [paid] = await client.events(signature);
  if (paid === undefined) throw new Error("the payment has no event");
  const refused = await client.pay(to, new BN(options["too-much"])).catch((error: unknown) => error);
  if (!(refused instanceof Refused)) throw refused instanceof Error ? refused : new Error("not refused");
  const known = idl.errors?.find((error) => error.code === refused.code);
  const said = {
    vault,
    payment: { signature, event: shown(paid) },
    refusal: {
      code: refused.code,
      name: known?.name,
      message: known?.msg,
      event: shown(client.violation(refused.logs)),
    },
    history: (await client.history()).map(shown),
  };
  console.log(JSON.stringify(said, null, 2));
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
