"""What the checks under tests/checks share. It imports nothing of steadyrack: it must be able to catch it lying."""
