// Hold boards against Grafana's schema: node check.mjs board.json ...
import { readFileSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const here = dirname(fileURLToPath(import.meta.url));
const files = process.argv.slice(2).map((name) => resolve(name));

// One module per board, in memory: a literal with a type in front of it is checked to its last field.
const sources = new Map(
  files.map((file, number) => [
    join(here, `board_${number}.ts`),
    `import type { Board } from './types';\nexport const board: Board =\n${readFileSync(file, 'utf8')};\n`,
  ]),
);
const options = {
  strict: true,
  noEmit: true,
  skipLibCheck: true,
  module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler,
  target: ts.ScriptTarget.ES2022,
  types: [],
};
const host = ts.createCompilerHost(options);
const { readFile, fileExists, getSourceFile } = host;
host.readFile = (name) => sources.get(resolve(name)) ?? readFile(name);
host.fileExists = (name) => sources.has(resolve(name)) || fileExists(name);
host.getSourceFile = (name, ...rest) => {
  const source = sources.get(resolve(name));
  return source ? ts.createSourceFile(name, source, ts.ScriptTarget.ES2022) : getSourceFile(name, ...rest);
};

const problems = ts.getPreEmitDiagnostics(ts.createProgram([...sources.keys()], options, host));
for (const problem of problems) {
  const name = problem.file?.fileName ?? '';
  const board = files[[...sources.keys()].indexOf(resolve(name))];
  const line = problem.file?.getLineAndCharacterOfPosition(problem.start).line ?? 0;
  const where = board ? `${basename(board)}:${line - 1}` : `${name}:${line + 1}`;
  console.log(`${where}: ${ts.flattenDiagnosticMessageText(problem.messageText, '\n')}`);
}
console.log(`${files.length} boards, ${problems.length} problems`);
process.exitCode = problems.length ? 1 : 0;
