"""What both sides of a join know: tokens, credentials and the files that keep them."""
