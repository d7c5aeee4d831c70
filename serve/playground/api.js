/**
 * The server: what it offers, and chats as streams of objects.
 *
 * The key is held in this object only: nothing is stored, and closing the page forgets it.
 */

import { objects } from "./stream.js";

/** A refusal of the server, or no server at all; `message` can be shown as it is. */
export class Refused extends Error {
  /** @param {string} message @param {number} status 0: not reached */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class Api {
  #key = "";

  /** @param {string} key empty: none is sent */
  set key(key) {
    this.#key = key.trim();
  }

  /** Models with their presets, and strategies with the schema of each parameter. */
  async offers() {
    const [models, version] = await Promise.all([this.#get("v1/models"), this.#get("version")]);
    return { models: models.data, strategies: version.strategies, version: version.version };
  }

  /** The objects of one streamed chat; aborting `signal` aborts the work on the server too. */
  async *chat(body, signal) {
    const response = await this.#fetch("v1/chat/completions", {
      method: "POST",
      body: JSON.stringify(body),
      signal,
      headers: { "content-type": "application/json" },
    });
    yield* objects(response.body);
  }

  async #get(path) {
    return (await this.#fetch(path, {})).json();
  }

  /** `path` is relative to the page, which a proxy may serve below a path of its own. */
  async #fetch(path, options) {
    const headers = { ...options.headers };
    if (this.#key) headers.authorization = `Bearer ${this.#key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(`the server cannot be reached (${error.message})`, 0);
    }
    if (!response.ok) throw new Refused(await told(response), response.status);
    return response;
  }
}

/** The message of an error reply, whatever sent it. */
async function told(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status} ${response.statusText}: ${text.slice(0, 200)}`;
  }
}
