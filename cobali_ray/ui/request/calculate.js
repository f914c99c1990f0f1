// Arithmetic out of a text, by a grammar of its own: nothing of it is ever run as code. No DOM.

const MOST_CHARS = 1000;
const MOST_NESTED = 100;
const TOKEN =
  /\s*(?:(\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)|([a-z_][a-z_\d]*)|(\*\*|[-+*/%^(),×÷·−]))/iy;
const SAME = { "×": "*", "·": "*", "÷": "/", "−": "-", "**": "^" };
const CONSTANTS = new Map([
  ["pi", Math.PI],
  ["e", Math.E],
]);
const NAMES = "sqrt cbrt abs round floor ceil min max exp log10 log2 sin cos tan".split(" ");
const FUNCTIONS = new Map([
  ...NAMES.map((name) => [name, Math[name]]),
  ["ln", Math.log],
  ["log", Math.log10],
]);
const SIGNS = [
  { "+": (a, b) => a + b, "-": (a, b) => a - b },
  { "*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => a % b },
];

/** Return what an expression comes to; throws with what is wrong in words. */
export function calculate(expression) {
  const tokens = tokensOf(expression);
  let at = 0;
  let depth = 0;
  const next = () => tokens[at]?.sign;
  const expect = (sign) => {
    if (next() !== sign)
      throw new Error(`expected "${sign}" ${tokens[at] ? `before "${tokens[at].text}"` : "at the end"}`);
    at += 1;
  };

  const chain = (level) => {
    if (level === SIGNS.length) return unary();
    let value = chain(level + 1);
    for (let apply = SIGNS[level][next()]; apply; apply = SIGNS[level][next()]) {
      at += 1;
      value = apply(value, chain(level + 1));
    }
    return value;
  };
  const unary = () => {
    const sign = next();
    if (sign !== "-" && sign !== "+") return power();
    at += 1;
    const value = nested(unary);
    return sign === "-" ? -value : value;
  };
  const power = () => {
    const base = atom();
    if (next() !== "^") return base;
    at += 1;
    return base ** nested(unary);
  };
  const nested = (rule) => {
    depth += 1;
    if (depth > MOST_NESTED) throw new Error("nested too deeply");
    const value = rule();
    depth -= 1;
    return value;
  };
  const inBrackets = () => {
    expect("(");
    const values = [nested(() => chain(0))];
    while (next() === ",") {
      at += 1;
      values.push(nested(() => chain(0)));
    }
    expect(")");
    return values;
  };
  const atom = () => {
    const token = tokens[at];
    if (!token) throw new Error("ends too early");
    if (token.sign === "(") {
      const values = inBrackets();
      if (values.length > 1) throw new Error('a "," outside a function');
      return values[0];
    }
    at += 1;
    if (token.number !== undefined) return token.number;
    if (CONSTANTS.has(token.name)) return CONSTANTS.get(token.name);
    if (FUNCTIONS.has(token.name)) return FUNCTIONS.get(token.name)(...inBrackets());
    throw new Error(token.name ? `"${token.text}" is not known` : `"${token.text}" is out of place`);
  };

  const value = chain(0);
  if (at < tokens.length) throw new Error(`"${tokens[at].text}" is out of place`);
  if (!Number.isFinite(value)) throw new Error("the result is not a finite number");
  return Number.isInteger(value) ? value : Number(value.toPrecision(12));
}

function tokensOf(expression) {
  const text = String(expression).trim();
  if (!text) throw new Error("there is nothing to calculate");
  if (text.length > MOST_CHARS) throw new Error(`longer than ${MOST_CHARS} characters`);
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const from = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw new Error(`"${text.slice(from).trim()[0]}" is out of place`);
    const [, number, name, sign] = match;
    if (number) tokens.push({ text: number, number: Number(number) });
    else if (name) tokens.push({ text: name, name: name.toLowerCase() });
    else tokens.push({ text: sign, sign: SAME[sign] ?? sign });
  }
  return tokens;
}
