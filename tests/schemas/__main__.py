"""Answer under many schemas and validate: `python -m tests.schemas [FOLDER] --schemas 100 --answers 3`.

Without a folder, under the schemas that lie here and made ones. JSONSchemaBench's folder is `data` in
https://github.com/guidance-ai/jsonschemabench, of which a copy is brought along by whoever runs this. It
fails if a finished answer is not valid, or a schema is refused or held in part without a word of the key.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.schemas.answers import Judge
from tests.schemas.collections import folders, iglu_central, made

COLUMNS = (
    "schemas", "taken with `strict`", "taken without", "named as not held", "answers", "finished", "valid",
)  # fmt: skip


def main() -> int:
    """Run, and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.schemas", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a folder of folders of schemas")
    parser.add_argument("--schemas", type=int, default=100, help="at most so many of each collection")
    parser.add_argument("--answers", type=int, default=3, help="under each schema")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.folder is None:
        parts = iter([("Iglu Central", iglu_central()[: args.schemas]), ("made", made(args.schemas))])
    else:
        parts = folders(args.folder, args.schemas, seed=args.seed)
    judge, errors = Judge(), []
    totals = [0] * len(COLUMNS)
    print(f"| | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for name, schemas in parts:
        verdicts = [
            judge.judge(schema, seed=args.seed + i, n_answers=args.answers)
            for i, schema in enumerate(schemas)
        ]
        found = [error for verdict in verdicts for error in verdict.errors]
        errors += [f"{name}: {error}" for error in found]
        n_finished = sum(verdict.n_finished for verdict in verdicts)
        row = [
            len(verdicts),
            sum(verdict.refused_strictly is None for verdict in verdicts),
            sum(verdict.refused is None for verdict in verdicts),
            sum(bool(verdict.ignored) for verdict in verdicts),
            sum(verdict.n_answers for verdict in verdicts),
            n_finished,
            n_finished - sum(verdict.n_invalid for verdict in verdicts),
        ]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        print(f"| {name} | {' | '.join(map(str, row))} |", flush=True)
        for verdict in verdicts:
            if verdict.broken is not None:
                print(f"not gone on with: {verdict.broken}", file=sys.stderr)
    print(f"| all | {' | '.join(map(str, totals))} |")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
