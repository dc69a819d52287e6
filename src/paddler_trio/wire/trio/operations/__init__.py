"""Messages with which operators look after machines: facts, orders, and lines of logs."""
