/**
 * One request as somebody would send it from elsewhere: with curl, or with OpenAI's library for Python.
 */

/** What OpenAI's library knows itself; everything else goes into extra_body. */
const OWN = ["model", "messages", "stream", "stream_options", "temperature", "max_tokens", "seed", "reasoning_effort", "tools"];

export const SNIPPETS = { curl, Python: python };

/** The API beside the page, which a proxy may serve below a path of its own. */
function base() {
  return new URL("v1", location.href).href;
}

function curl(body) {
  const text = JSON.stringify({ ...body, stream: undefined, stream_options: undefined }, null, 1).replaceAll("'", "'\\''");
  const key = "-H \"Authorization: Bearer $TTC_KEY\"";
  return `curl ${base()}/chat/completions -H 'Content-Type: application/json' ${key} -d '${text}'`;
}

function python(body) {
  const { stream, stream_options, ...rest } = body;
  const own = Object.entries(rest).filter(([name]) => OWN.includes(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => !OWN.includes(name)));
  const fields = [...own, ...(Object.keys(extra).length > 0 ? [["extra_body", extra]] : [])];
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${base()}", api_key=os.environ.get("TTC_KEY", "none"))`,
    "reply = client.chat.completions.create(",
    ...fields.map(([name, value]) => `    ${name}=${literal(value)},`),
    ")",
    "print(reply.choices[0].message.content)",
  ].join("\n");
}

/** A value of JSON as Python writes it. */
function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${literal(part)}`).join(", ")}}`;
}
