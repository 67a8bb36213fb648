"""Server steps: what the server makes of a round's released sum, one file each."""
