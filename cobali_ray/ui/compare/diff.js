// What two texts share and what only one of them has, word by word. No DOM.

const MOST_CELLS = 4e6; // 2,000 words against 2,000, a tenth of a second
const words = new Intl.Segmenter("en", { granularity: "word" });

/** Return pieces `{key, text}`: a word or a sign with the space behind it, which is not compared. */
function wordsOf(text) {
  const pieces = [];
  for (const { segment } of words.segment(text)) {
    if (segment.trim() || !pieces.length) pieces.push({ key: segment, text: segment });
    else pieces.at(-1).text += segment;
  }
  return pieces;
}

const linesOf = (text) => text.split(/(?<=\n)/).map((line) => ({ key: line.trim(), text: line }));

/**
 * Return what the longest common sequence leaves: `{by, parts}`, parts `{same}` or `{removed, added}` in order.
 *
 * Long texts are compared line by line; null where even that is too much.
 */
export function differenceOf(left, right) {
  for (const [by, split] of Object.entries({ word: wordsOf, line: linesOf })) {
    const [a, b] = [split(left), split(right)];
    let start = 0;
    while (start < a.length && start < b.length && a[start].key === b[start].key) start += 1;
    let end = 0;
    while (end < Math.min(a.length, b.length) - start && a.at(-1 - end).key === b.at(-1 - end).key) end += 1;
    const [m, n] = [a.length - start - end, b.length - start - end];
    if ((m + 1) * (n + 1) > MOST_CELLS) continue;
    const shared = sharedOf(a.slice(start, start + m), b.slice(start, start + n));
    const pairs = [
      ...Array.from({ length: start }, (_, i) => [i, i]),
      ...shared.map(([i, j]) => [i + start, j + start]),
      ...Array.from({ length: end }, (_, i) => [a.length - end + i, b.length - end + i]),
    ];
    return { by, parts: partsOf(a, b, pairs) };
  }
  return null;
}

/** Return pairs of places with the same key, as many as can stand in one order. */
function sharedOf(left, right) {
  const numbers = new Map(); // numbers compare sooner than words
  const numbered = ({ key }) => numbers.get(key) ?? numbers.set(key, numbers.size).get(key);
  const [a, b] = [left.map(numbered), right.map(numbered)];
  const wide = b.length + 1;
  const most = new Uint16Array((a.length + 1) * wide); // the most that can still be shared from here on
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      most[i * wide + j] =
        a[i] === b[j]
          ? most[(i + 1) * wide + j + 1] + 1
          : Math.max(most[(i + 1) * wide + j], most[i * wide + j + 1]);
  const pairs = [];
  for (let [i, j] = [0, 0]; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (most[(i + 1) * wide + j] >= most[i * wide + j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}

function partsOf(a, b, pairs) {
  const parts = [];
  const textOf = (pieces) => pieces.map(({ text }) => text).join("");
  let [i, j] = [0, 0];
  for (const [x, y] of [...pairs, [a.length, b.length]]) {
    if (x > i || y > j) {
      const [removed, added] = [a.slice(i, x), b.slice(j, y)];
      parts.push({ removed: textOf(removed), nRemoved: removed.length, added: textOf(added), nAdded: added.length });
    }
    if (y < b.length) {
      if (parts.at(-1)?.same === undefined) parts.push({ same: "", n: 0 });
      parts.at(-1).same += a[x].text.length > b[y].text.length ? a[x].text : b[y].text;
      parts.at(-1).n += 1;
    }
    [i, j] = [x + 1, y + 1];
  }
  return parts;
}
