"""The demo rack and the two commands: what `./rack` hands over to."""
