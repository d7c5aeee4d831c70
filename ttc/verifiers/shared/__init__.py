"""What verifiers share: the contract, targets, reading, prose, versions."""
