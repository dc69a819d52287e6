"""Services that both daemons need around their trees: signals, logs, systemd, the printed tree."""
