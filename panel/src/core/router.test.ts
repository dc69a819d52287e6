import assert from "node:assert/strict";
import { test } from "node:test";
import { hrefOf, parseRoute } from "./router";

test("an empty address is the first page", () => {
  assert.equal(parseRoute("").page, "fleet");
  assert.equal(parseRoute("#/").page, "fleet");
});

test("a route has a page, parts and a query", () => {
  const { page, rest, query } = parseRoute("#/requests/17?client=a%20b&state=all");
  assert.equal(page, "requests");
  assert.deepEqual(rest, ["17"]);
  assert.equal(query.get("client"), "a b");
  assert.equal(query.get("state"), "all");
});

test("what is built is parsed back, slashes and question marks too", () => {
  const { page, rest, query } = parseRoute(hrefOf("requests", ["a/b?c"], { client: "x&y", agent: null, ending: "" }));
  assert.equal(page, "requests");
  assert.deepEqual(rest, ["a/b?c"]);
  assert.deepEqual([...query], [["client", "x&y"]]);
});

test("a stray per cent sign is no error", () => {
  assert.deepEqual(parseRoute("#/requests/50%").rest, ["50%"]);
});
