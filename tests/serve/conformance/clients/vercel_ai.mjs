// The Vercel AI SDK: text with its thought, an object by a schema, tools over several steps; streamed and not.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const base = process.env.TTC_SERVE_URL + "/v1", name = process.env.TTC_SERVE_MODEL;
const messagesOnly = process.env.TTC_SERVE_PLACE === "messages";
const compatible = createOpenAICompatible({
  name: "ttc", baseURL: base, supportsStructuredOutputs: true, includeUsage: true,
});
const openai = createOpenAI({ baseURL: base, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: base, apiKey: "none" });
const models = {
  compatible: compatible(name), chat: openai.chat(name), responses: openai.responses(name), anthropic: anthropic(name),
};
const schema = z.object({ city: z.string(), parts: z.array(z.object({ name: z.string(), people: z.number() })) });
const weather = (seen) => tool({
  description: "Tell the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => { seen.push(city); return "12 degrees"; },
});

for (const [kind, model] of Object.entries(models)) {
  const plain = await generateText({ model, prompt: "3+4", maxRetries: 0 });
  assert.match(plain.text, /7/, kind);
  assert.ok(plain.usage.outputTokens > 0, kind);
  if (kind === "compatible" || kind === "anthropic") assert.ok(plain.reasoningText, kind);

  const { object } = await generateObject({ model, schema, prompt: "Tell of Paris.", maxRetries: 0 });
  assert.equal(object.city, "Paris", kind);
  const parts = streamObject({ model, schema, prompt: "Tell of Paris.", maxRetries: 0 });
  for await (const part of parts.partialObjectStream) assert.ok(part, kind);
  assert.equal((await parts.object).city, "Paris", kind);

  for (const ask of [generateText, streamText]) {
    const seen = [];
    const result = await ask({
      model, tools: { weather: weather(seen) }, stopWhen: stepCountIs(3), prompt: "Is it warm in Paris?", maxRetries: 0,
      providerOptions: { openai: { store: false } }, // nothing is stored here, so items are sent whole
    });
    assert.ok(await result.text, kind);
    assert.deepEqual(seen, ["Paris"], kind);
  }
}
const options = { ttc: { thinking_budget: 4 } };
if (!messagesOnly) {
  const held = await generateText({ model: models.compatible, prompt: "3+4", providerOptions: options, maxRetries: 0 });
  assert.equal(held.usage.reasoningTokens, 4);
}
