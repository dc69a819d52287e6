// The official JavaScript client against the address in argv[2]; prints one JSON object.
import OpenAI, { BadRequestError, NotFoundError } from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const model = "any-name";
const who = [{ role: "user", content: "Who are you?" }];
const told = {};

const whole = await client.chat.completions.create({
  model, messages: who, max_tokens: 40, temperature: 0, enable_thinking: false,
});
told.content = whole.choices[0].message.content;
told.requestId = whole._request_id;

told.streamed = "";
const stream = await client.chat.completions.create({
  model, messages: who, max_tokens: 40, temperature: 0, enable_thinking: false,
  stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  told.streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) told.usage = chunk.usage;
}

const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather of a city",
    parameters: {
      type: "object", properties: { city: { type: "string" } }, required: ["city"],
    },
  },
};
const runner = client.chat.completions.stream({
  model, messages: [{ role: "user", content: "What is the weather in Paris?" }],
  tools: [tool], temperature: 0, max_tokens: 100, enable_thinking: false,
});
const final = await runner.finalChatCompletion();
told.call = final.choices[0].message.tool_calls[0].function;
told.finish = final.choices[0].finish_reason;

const asked = {
  model, input: "Who are you?", max_output_tokens: 40, temperature: 0,
  reasoning: { effort: "none" },
};
told.response = (await client.responses.create(asked)).output_text;
const events = client.responses.stream(asked);
told.deltas = "";
events.on("response.output_text.delta", (event) => { told.deltas += event.delta; });
told.finalResponse = (await events.finalResponse()).output_text;

const { response, request_id: requestId } = await client.chat.completions.create({
  model, messages: who, max_tokens: 1,
}).withResponse();
told.sameId = response.headers.get("x-request-id") === requestId;

const { response: informed } = await client.chat.completions.create({
  model, messages: who, max_tokens: 1, no_such_field: 1,
}).withResponse();
told.ignored = informed.headers.get("x-paddler-ignored-fields");
try {
  await client.chat.completions.create({ model, messages: who, n: 0 });
} catch (error) {
  told.refused = error instanceof BadRequestError ? error.param : String(error);
}
try {
  await client.models.retrieve("gpt-nix");
} catch (error) {
  told.unknown = error instanceof NotFoundError ? error.code : String(error);
}
told.models = (await client.models.list()).data.map((each) => each.id);

const left = await client.chat.completions.create({
  model, messages: [{ role: "user", content: "Tell me a long story." }],
  ignore_eos: true, stream: true,
});
for await (const chunk of left) {
  if (chunk.choices[0].delta.content || chunk.choices[0].delta.reasoning_content) break;
}
told.left = true;
console.log(JSON.stringify(told));
