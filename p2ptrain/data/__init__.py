"""Turn documents into blocks of tokens, the unit of training data, and read the blocks again."""
