"""Load over HTTP: what is sent, how it is sent and stamped, and what the answers add up to."""
