/**
 * What two replies to one question differ in: the answer, the tokens, the price, the time.
 */

/** @param {{name: string, final: string|null, answer: string, tokens: number, seconds: number, price: number|null}} a */
export function difference(a, b) {
  const [left, right] = [a, b].map((side) => side.final ?? side.answer.trim());
  const answer = left === right ? `Both answer ${short(left)}.` : `${a.name} answers ${short(left)}, ${b.name} ${short(right)}.`;
  const measures = [["tokens", a.tokens, b.tokens], ["time", a.seconds, b.seconds]];
  if (a.price !== null && b.price !== null) measures.push(["money", a.price, b.price]);
  return `${answer} ${a.name} takes ${measures.map((one) => ratio(...one)).join(", ")} of ${b.name}.`;
}

function ratio(what, first, second) {
  if (second <= 0) return `some ${what} to none`;
  const times = first / second;
  return `${times.toPrecision(times < 10 ? 2 : 3)} times the ${what}`;
}

function short(text) {
  return text === "" ? "nothing" : text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
