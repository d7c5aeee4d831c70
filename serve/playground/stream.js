/**
 * Server-sent events to objects, and the chunks of one chat to a reply that grows.
 */

/** The JSON of every data event until [DONE]; comments (keep-alives) are skipped. */
export async function* objects(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        if (event === "data: [DONE]") return;
        yield JSON.parse(event.slice("data: ".length));
      }
    }
  } finally {
    await reader.cancel().catch(() => {}); // an aborted stream is closed already
  }
}

/** One reply, put together chunk by chunk: thought and answer apart, progress, and what came of it. */
export class Reply {
  thinking = "";
  answer = "";
  /** Texts that came: each holds one token or more. */
  pieces = 0;
  progress = null;
  result = null;
  error = null;
  finish = null;
  /** Calls of functions, each whole. */
  calls = [];

  /** @param {object} chunk @returns {object[]} nodes of the search that changed */
  take(chunk) {
    if (chunk.error) {
      this.error = chunk.error.message;
      return [];
    }
    for (const choice of chunk.choices) {
      const { reasoning = "", content = "" } = choice.delta;
      this.thinking += reasoning;
      this.answer += content;
      this.pieces += (reasoning !== "") + (content !== "");
      this.finish = choice.finish_reason ?? this.finish;
      for (const delta of choice.delta.tool_calls ?? []) this.#call(delta);
    }
    if (chunk.ttc?.type === "progress") {
      this.progress = chunk.ttc;
      return chunk.ttc.nodes ?? [];
    }
    this.result = chunk.ttc ?? this.result;
    return [];
  }

  #call({ index, function: told }) {
    const call = (this.calls[index] ??= { name: "", arguments: "" });
    call.name += told.name ?? "";
    call.arguments += told.arguments ?? "";
  }

  /** Tokens so far, and whether that is all of them. */
  tokens() {
    if (this.result) return { count: this.result.usage.tokens, exact: true };
    return { count: this.progress?.tokens ?? this.pieces, exact: false };
  }
}
