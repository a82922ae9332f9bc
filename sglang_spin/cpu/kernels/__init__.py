"""CPU kernels for the operators that SGLang's DSA path takes from CUDA libraries."""
