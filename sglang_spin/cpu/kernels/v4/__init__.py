"""Reference kernels that DeepSeek-V4 needs beyond those of DeepSeek-V3.2."""
