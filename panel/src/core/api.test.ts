import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, api } from "./api";

/** What a question comes to whose answer begins well, and then fails with `error`. */
async function broken(error: unknown): Promise<unknown> {
  globalThis.location = { href: "http://panel.test/#/keys" } as Location;
  globalThis.fetch = async () =>
    new Response(new ReadableStream({ pull: (controller) => controller.error(error) }));
  return api.get("api/v2/keys").catch((caught: unknown) => caught);
}

test("a balancer that dies within an answer is an error that pages show", async () => {
  const found = await broken(new TypeError("network error"));
  assert.ok(found instanceof ApiError);
  assert.equal(found.status, 0);
  assert.equal(found.text, "The balancer broke off its answer.");
});

test("so is an answer whose end is late", async () => {
  const found = await broken(new DOMException("signal timed out", "TimeoutError"));
  assert.ok(found instanceof ApiError);
  assert.equal(found.text, "The balancer did not answer in time.");
});

test("who gives a request up gets their own error", async () => {
  const givenUp = new DOMException("given up", "AbortError");
  assert.equal(await broken(givenUp), givenUp);
});
