"""What the model learns from: tables, wordings and grammars, all typed here, and the code that combines them."""
