"""How `builtin:tiny` is made: corpus, tokenizer, training, export, evaluation. Not part of the package."""
