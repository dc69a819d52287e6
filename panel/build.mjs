/**
 * Builds the panel into static files: `node build.mjs [FOLDER]`.
 *
 * The same sources give the same bytes, whatever machine builds them, but for the compressed copies: zlib differs between
 * versions of node. `node build.mjs --compare` builds into memory and fails unless the committed files are those.
 */

import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";
import { build } from "esbuild";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ASSETS = path.join(HERE, "../src/paddler_trio/balancer/panel/assets");
const TARGET = ["chrome123", "firefox120", "safari17.5"]; // the first with light-dark()
const LIBRARIES = ["preact", "@preact/signals", "@preact/signals-core", "uplot", "marked", "dompurify"];
const COMPRESSED = /\.(html|js|css|svg|txt)$/;

const shared = {
  absWorkingDir: HERE,
  bundle: true,
  minify: true,
  write: false,
  metafile: true,
  charset: "utf8",
  target: TARGET,
  legalComments: "none", // all licences are in licences.txt
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  logLevel: "warning",
};

/** Every file by its name, as bytes. */
async function built() {
  const files = new Map();
  const take = (result) => {
    for (const file of result.outputFiles) {
      files.set(path.basename(file.path), Buffer.from(file.contents));
    }
  };
  const pages = fs
    .readdirSync(path.join(HERE, "src/pages"), { withFileTypes: true })
    .filter((each) => each.isDirectory() && fs.existsSync(styleSource(each.name)))
    .map((each) => each.name)
    .sort();
  const styles = await build({
    ...shared,
    entryPoints: ["src/styles/index.css", ...pages.map((page) => path.relative(HERE, styleSource(page)))],
    outdir: "out",
    outbase: "src",
  });
  take(styles);
  const styleOf = (source) => path.basename(outputOf(styles, path.relative(HERE, source)));
  const pageStyles = Object.fromEntries(pages.map((page) => [page, styleOf(styleSource(page))]));
  const scripts = await build({
    ...shared,
    entryPoints: ["src/main.tsx"],
    outdir: "out",
    format: "esm",
    splitting: true,
    jsx: "automatic",
    jsxImportSource: "preact",
    define: { PAGE_STYLES: JSON.stringify(pageStyles) },
    loader: { ".css": "empty" },
  });
  take(scripts);
  const script = outputOf(scripts, "src/main.tsx");
  const icon = fs.readFileSync(path.join(HERE, "src/icon.svg"));
  const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8)}.svg`;
  files.set(iconName, icon);
  files.set("licences.txt", Buffer.from(licences()));
  files.set(
    "index.html",
    Buffer.from(
      page({
        icon: `assets/${iconName}`,
        style: `assets/${styleOf(path.join(HERE, "src/styles/index.css"))}`,
        script: `assets/${path.basename(script)}`,
        preload: scripts.metafile.outputs[script].imports
          .filter((each) => each.kind === "import-statement")
          .map((each) => `<link rel="modulepreload" href="assets/${path.basename(each.path)}">`)
          .sort()
          .join("\n    "),
      }),
    ),
  );
  return files;
}

function styleSource(name) {
  return path.join(HERE, "src/pages", name, `${name}.css`);
}

function outputOf(result, source) {
  const found = Object.entries(result.metafile.outputs).find(([, each]) => each.entryPoint === source);
  if (found === undefined) {
    throw new Error(`nothing was built from ${source}`);
  }
  return found[0];
}

function page(values) {
  const text = fs.readFileSync(path.join(HERE, "src/index.html"), "utf8");
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** The licences of the libraries that are in the files. */
function licences() {
  const parts = LIBRARIES.map((name) => {
    const folder = path.join(HERE, "node_modules", name);
    const { version, license } = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8"));
    const texts = fs.readdirSync(folder).filter((file) => /^licen[cs]e/i.test(file)).sort();
    if (texts.length === 0) {
      throw new Error(`${name} has no licence file`);
    }
    const text = texts.map((file) => fs.readFileSync(path.join(folder, file), "utf8").trim()).join("\n\n");
    return `${name} ${version} (${license})\n\n${text}\n`;
  });
  const line = `\n${"-".repeat(80)}\n\n`;
  return `Libraries in the web admin panel of paddler-trio\n${line}${parts.join(line)}`.replaceAll("\r\n", "\n");
}

function write(files, folder) {
  fs.rmSync(folder, { recursive: true, force: true });
  fs.mkdirSync(folder, { recursive: true });
  for (const [name, bytes] of files) {
    fs.writeFileSync(path.join(folder, name), bytes);
    if (COMPRESSED.test(name)) {
      fs.writeFileSync(path.join(folder, `${name}.gz`), gzipSync(bytes, { level: 9 }));
    }
  }
}

/** What differs between the files and those in the folder, in words. */
function differences(files, folder) {
  const names = new Set(fs.existsSync(folder) ? fs.readdirSync(folder) : []);
  const found = [];
  for (const [name, bytes] of files) {
    if (!names.delete(name)) {
      found.push(`${name} is missing`);
    } else if (!fs.readFileSync(path.join(folder, name)).equals(bytes)) {
      found.push(`${name} is not what the sources give`);
    }
    if (COMPRESSED.test(name)) {
      if (!names.delete(`${name}.gz`)) {
        found.push(`${name}.gz is missing`);
      } else if (!gunzipSync(fs.readFileSync(path.join(folder, `${name}.gz`))).equals(bytes)) {
        found.push(`${name}.gz is not what the sources give`);
      }
    }
  }
  return [...found, ...[...names].sort().map((name) => `${name} comes from nowhere`)];
}

function report(files) {
  for (const [name, bytes] of [...files].sort()) {
    const gz = COMPRESSED.test(name) ? gzipSync(bytes, { level: 9 }).length : bytes.length;
    console.log(`${String(bytes.length).padStart(8)} ${String(gz).padStart(7)} gz  ${name}`);
  }
}

const files = await built();
if (process.argv[2] === "--compare") {
  const found = differences(files, ASSETS);
  if (found.length > 0) {
    console.error(`The committed panel is not what panel/ gives; run \`make panel\`.\n  ${found.join("\n  ")}`);
    process.exit(1);
  }
  console.log(`${files.size} files are what the sources give`);
} else {
  write(files, process.argv[2] ?? ASSETS);
  report(files);
}
