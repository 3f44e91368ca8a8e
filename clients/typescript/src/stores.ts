/** A store of idempotency keys in a folder, so that a payment can be repeated safely after its process has died. */

import { createHash, randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { link, mkdir, open, readFile, unlink } from "node:fs/promises";
import { join } from "node:path";

import type { KeyStore, StoredKey } from "./core.js";
import { StoreError } from "./errors.js";

/**
 * A folder with one file per order. Processes may share the folder, and the Python client reads the same files. Delete
 * an order's file only if the order will never be repeated.
 */
export class FolderStore implements KeyStore {
  constructor(private readonly folder: string) {}

  async claim(fresh: StoredKey): Promise<StoredKey> {
    const path = join(this.folder, `${createHash("sha256").update(fresh.order).digest("hex")}.json`);
    try {
      await mkdir(this.folder, { recursive: true, mode: 0o700 });
      if (!existsSync(path)) await this.store(path, JSON.stringify(fresh));
      const found = JSON.parse(await readFile(path, "utf8")) as Partial<StoredKey>;
      if (typeof found.key !== "string" || typeof found.created_at !== "number") throw new TypeError("its file is malformed");
      const { order = "", key, created_at, wallet_id = "", payee = "", amount = "" } = found;
      return { order, key, created_at, wallet_id, payee, amount };
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      throw new StoreError(`The key of order ${JSON.stringify(fresh.order)} cannot be stored: ${reason}. Nothing was sent.`, { cause: error });
    }
  }

  private async store(path: string, text: string): Promise<void> {
    const temporary = join(this.folder, `${randomUUID()}.tmp`);
    const file = await open(temporary, "wx", 0o600);
    try {
      await file.writeFile(text);
      await file.sync();
      // Unlike a rename, a link never replaces the key of a simultaneous claim.
      await link(temporary, path).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== "EEXIST") throw error;
      });
    } finally {
      await file.close();
      await unlink(temporary);
    }
    if (process.platform !== "win32") {
      const folder = await open(this.folder, "r");
      await folder.sync().finally(() => folder.close());
    }
  }
}
