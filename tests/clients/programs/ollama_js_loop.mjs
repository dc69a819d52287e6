// Ollama's own client: a loop over one tool, whole or streamed, an answer of a given shape, and its list of models.
import { Ollama } from "ollama";

const isStreamed = process.argv[2] === "streamed";
const ollama = new Ollama({ host: process.env.FLEET_URL });
const model = "default";
const tools = [
  {
    type: "function",
    function: {
      name: "look_up",
      description: "Look up the weather of a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" }, days: { type: "integer" } },
        required: ["city", "days"],
      },
    },
  },
];
const calls = [];
const messages = [
  { role: "system", content: "Answer shortly." },
  { role: "user", content: "Where is it warm?" },
];

async function turn() {
  const asked = { model, messages, tools };
  if (!isStreamed) return (await ollama.chat(asked)).message;
  const message = { role: "assistant", content: "", tool_calls: [] };
  for await (const part of await ollama.chat({ ...asked, stream: true })) {
    message.content += part.message.content;
    message.tool_calls.push(...(part.message.tool_calls ?? []));
  }
  return message;
}

let message = await turn();
while (message.tool_calls?.length) {
  messages.push(message);
  for (const call of message.tool_calls) {
    const { city, days } = call.function.arguments;
    calls.push([city, days]);
    messages.push({ role: "tool", content: `${city}: 20 degrees`, tool_name: call.function.name });
  }
  message = await turn();
}
const shape = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
};
const shaped = await ollama.chat({ model, messages: [{ role: "user", content: "The warmest as JSON?" }], format: shape });
const served = (await ollama.list()).models.map((each) => each.name);
const shown = await ollama.show({ model: served[0] });
console.log(
  JSON.stringify({
    calls,
    text: message.content,
    shaped: JSON.parse(shaped.message.content),
    pulled: (await ollama.pull({ model: served[0] })).status,
    listed: shown.capabilities.includes("completion"),
  }),
);
