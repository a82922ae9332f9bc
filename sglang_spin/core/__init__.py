"""The method itself, in torch: history, prediction, selection, compaction. Never imports SGLang."""
