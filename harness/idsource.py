"""Token ids for prompts: generated, cut from a corpus, or given line by line."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.errors import ConfigError
from harness.spec_content import Content, CorpusIds, FileIds, TopicIds

TokenIds = NDArray[np.int64]


def draw_ids(content: Content, length: int, generator: np.random.Generator) -> TokenIds:
    """`length` ids [length] int64 as the generator picks them. Raises ConfigError for bad files."""
    if isinstance(content, TopicIds):
        return _topic_ids(content, length, generator)
    if isinstance(content, CorpusIds):
        corpus = corpus_ids(content.path)
        start = int(generator.integers(len(corpus)))
        return corpus[np.arange(start, start + length) % len(corpus)]
    if isinstance(content, FileIds):
        known = np.unique(np.concatenate(file_ids(content.path)))
        return generator.choice(known, size=length)
    return generator.integers(content.low, content.high, size=length, dtype=np.int64)


def _topic_ids(content: TopicIds, length: int, generator: np.random.Generator) -> TokenIds:
    topic = np.empty(length, dtype=np.int64)
    start = 0
    while start < length:
        end = start + int(generator.integers(content.segment_min, content.segment_max + 1))
        topic[start:end] = generator.integers(content.topics)
        start = end
    within = generator.integers(content.ids_per_topic, size=length)
    return content.low + topic * content.ids_per_topic + within


@lru_cache(maxsize=4)
def corpus_ids(path: str) -> TokenIds:
    """The ids of a .npy corpus, one dimension. Raises ConfigError."""
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            [f"{path}: cannot be read as .npy ({error}), write one with `harness tokenize`"]
        ) from None
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0:
        raise ConfigError([f"{path}: a corpus is one non-empty row of whole numbers from 0 on"])
    return np.asarray(ids, dtype=np.int64)


@lru_cache(maxsize=4)
def file_ids(path: str) -> tuple[TokenIds, ...]:
    """The prompts of a .jsonl, one per line. Raises ConfigError with the line."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from None
    prompts: list[TokenIds] = []
    for number, line in enumerate(lines, 1):
        try:
            ids = orjson.loads(line)
        except orjson.JSONDecodeError:
            ids = None
        if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise ConfigError([f"{path}:{number}: a line is a list of token ids, as [5, 17, 3]"])
        prompts.append(np.array(ids, dtype=np.int64))
    if not prompts:
        raise ConfigError([f"{path}: holds no prompt"])
    return tuple(prompts)


def line_ids(content: FileIds, line: int, length: int) -> TokenIds:
    """The first `length` ids of a line. Raises ConfigError when the file has fewer."""
    prompts = file_ids(content.path)
    if line >= len(prompts):
        raise ConfigError(
            [f"{content.path}: has {len(prompts)} prompts, the workload needs {line + 1} or more"]
        )
    if len(prompts[line]) < length:
        raise ConfigError(
            [f"{content.path}:{line + 1}: has {len(prompts[line])} ids, "
             f"the workload needs {length}"]
        )  # fmt: skip
    return prompts[line][:length]
