/**
 * What two replies to one question differ in: the answer, the tokens, the price, the time.
 */

/** @param {{name: string, final: string|null, answer: string, tokens: number, seconds: number, price: number|null}} a */
export function difference(a, b) {
  const [left, right] = [a, b].map((side) => side.final ?? side.answer.trim());
  const answer = left === right ? `Both answer ${short(left)}.` : `${a.name} answers ${short(left)}, ${b.name} ${short(right)}.`;
  const measures = [["tokens", a.tokens, b.tokens], ["time", a.seconds, b.seconds]];
  if (a.price !== null && b.price !== null) measures.push(["money", a.price, b.price]);
  return `${answer} ${sides(measures, a, b)}`;
}

/** Who takes more of each, and how many times: a sentence for each side that takes more of something. */
function sides(measures, a, b) {
  const told = [[a, b, (one) => one], [b, a, ([what, first, second]) => [what, second, first]]].map(([more, less, turned]) => {
    const own = measures.map(turned).filter(([, mine, other]) => mine > other).map((one) => ratio(...one));
    return own.length === 0 ? "" : `${more.name} takes ${own.join(", ")} of ${less.name}.`;
  });
  return told.filter((text) => text !== "").join(" ") || "Both take the same.";
}

function ratio(what, more, less) {
  if (less <= 0) return `some ${what} to none`;
  const times = more / less;
  return `${times.toPrecision(times < 9.95 ? 2 : 3)} times the ${what}`;
}

function short(text) {
  return text === "" ? "nothing" : text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
