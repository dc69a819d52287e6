"""Files of models: from a name to a verified file, and what is known of its memory."""
