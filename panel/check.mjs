/** Runs the unit tests: every `src/**\/*.test.ts`, bundled for node. */

import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const tests = fs
  .readdirSync(path.join(HERE, "src"), { recursive: true })
  .filter((name) => /\.test\.tsx?$/.test(name))
  .sort()
  .map((name) => path.join("src", name));
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "panel-check-"));
try {
  await build({
    absWorkingDir: HERE,
    entryPoints: tests,
    outdir: folder,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    jsx: "automatic",
    jsxImportSource: "preact",
    define: { PAGE_STYLES: "{}" },
    loader: { ".css": "empty" },
    logLevel: "warning",
  });
  const built = fs
    .readdirSync(folder, { recursive: true })
    .filter((name) => name.endsWith(".mjs"))
    .map((name) => path.join(folder, name));
  const { status } = spawnSync(process.execPath, ["--test", ...built], { stdio: "inherit" });
  process.exitCode = status ?? 1;
} finally {
  fs.rmSync(folder, { recursive: true, force: true });
}
