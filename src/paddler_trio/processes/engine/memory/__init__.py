"""Try and measure what a model needs of memory."""
