/** Conversations on which a chat template is tried. */

import type { Json } from "./spec";

export interface Sample {
  id: string;
  title: string;
  messages: Json[];
  tools: Json[] | null;
  thinking: boolean;
}

const SYSTEM: Json = { role: "system", content: "You are a helpful assistant. Answer briefly." };
const QUESTION: Json = { role: "user", content: "What is the tallest mountain in Europe?" };

const WEATHER: Json = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city, now.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "Its name." } },
      required: ["city"],
    },
  },
};

export const SAMPLES: readonly Sample[] = [
  { id: "chat", title: "Question", messages: [SYSTEM, QUESTION], tools: null, thinking: false },
  {
    id: "turns",
    title: "Turns",
    messages: [
      SYSTEM,
      QUESTION,
      { role: "assistant", content: "Mount Elbrus, 5,642 m." },
      { role: "user", content: "And the longest river?" },
    ],
    tools: null,
    thinking: false,
  },
  { id: "thinking", title: "Thinking", messages: [SYSTEM, QUESTION], tools: null, thinking: true },
  {
    id: "tools",
    title: "Tools",
    messages: [
      SYSTEM,
      { role: "user", content: "Do I need an umbrella in Lisbon?" },
      {
        role: "assistant",
        content: "",
        tool_calls: [
          { id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city": "Lisbon"}' } },
        ],
      },
      { role: "tool", tool_call_id: "call_1", name: "get_weather", content: '{"sky": "rain"}' },
    ],
    tools: [WEATHER],
    thinking: false,
  },
];

export function sampleOf(id: string): Sample {
  return SAMPLES.find((each) => each.id === id) ?? (SAMPLES[0] as Sample);
}
