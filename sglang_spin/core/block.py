"""The unit of selection."""

BLOCK = 64  # entries in one block, which is one page of SGLang's index-K cache
