"""`harness tokenize`: texts to the ids of a corpus, once, long before any load."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from harness.errors import EXIT_OK, HarnessError
from harness.progress import Progress
from harness.runstore import write_whole


def tokenize(texts: Sequence[Path], tokenizer: Path, out: Path, progress: Progress) -> int:
    """Write the ids of all texts, one after the other, as .npy of uint32. Raises HarnessError."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise HarnessError("tokenizers is not installed: pip install tokenizers") from None
    if not tokenizer.is_file():
        raise HarnessError(f"{tokenizer}: there is no tokenizer.json")
    encoder = Tokenizer.from_file(str(tokenizer))
    parts = [_ids(encoder, path) for path in texts]
    ids = np.concatenate(parts).astype(np.uint32)
    if not len(ids):
        raise HarnessError("the texts are empty")
    buffer = BytesIO()
    np.save(buffer, ids)
    write_whole(out, buffer.getvalue())
    progress.say(f"{out}: {len(ids):,} ids of {len(texts)} text(s), the largest is {ids.max()}")
    return EXIT_OK


def _ids(encoder: object, path: Path) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    encoded = encoder.encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
    return np.array(encoded.ids, dtype=np.int64)
