// Vercel's AI SDK: a loop over one tool, whole or streamed, then an object of a given shape.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [api, way] = process.argv.slice(2);
const baseURL = `${process.env.FLEET_URL}/v1`;
const apiKey = "none";
const models = {
  responses: () => createOpenAI({ baseURL, apiKey })("default"),
  chat_completions: () => createOpenAI({ baseURL, apiKey }).chat("default"),
  compatible: () => createOpenAICompatible({ name: "fleet", baseURL, apiKey })("default"),
  messages: () => createAnthropic({ baseURL, apiKey })("default"),
};
const model = models[api]();
const calls = [];
const tools = {
  look_up: tool({
    description: "Look up the weather of a city.",
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async ({ city, days }) => {
      calls.push([city, days]);
      return `${city}: 20 degrees`;
    },
  }),
};
const asked = {
  model,
  tools,
  system: "Answer shortly.",
  prompt: "Where is it warm?",
  stopWhen: stepCountIs(6),
};
let text = "";
if (way === "streamed") {
  const result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  for await (const part of result.textStream) text += part;
} else {
  text = (await generateText(asked)).text;
}
const shaped = await generateText({
  model,
  prompt: "The warmest as JSON?",
  output: Output.object({ schema: z.object({ city: z.string(), degrees: z.number().int() }) }),
});
console.log(JSON.stringify({ calls, text, shaped: shaped.output }));
