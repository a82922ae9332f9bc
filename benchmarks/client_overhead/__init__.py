"""How much a load generator itself costs: ours, aiperf's and SGLang's on one server in one run."""
