"""Pure deciders: no trio, no clock, no input or output. They decide; the shells obey."""
