import assert from "node:assert/strict";
import { test } from "node:test";
import { errorFrom } from "./api";
import { backOff } from "./feed";

test("waits grow, have a limit, and differ between pages", () => {
  assert.equal(backOff(0, 1), 500);
  assert.equal(backOff(0, 0), 250);
  assert.equal(backOff(3, 1), 4000);
  assert.equal(backOff(50, 1), 8000);
});

test("an error's words and its field are found in every shape", () => {
  assert.equal(errorFrom(400, "state.deployments: too many").text, "state.deployments: too many");
  assert.equal(errorFrom(400, '{"error":"no","field":"a.b"}').field, "a.b");
  const openai = errorFrom(404, '{"error":{"message":"no such model","param":"model"}}');
  assert.equal(openai.text, "no such model");
  assert.equal(openai.field, "model");
  assert.match(errorFrom(504, "<html>Bad gateway</html>").text, /no answer/);
  assert.match(errorFrom(500, "").text, /status 500/);
});
