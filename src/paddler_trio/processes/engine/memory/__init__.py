"""What a model needs of memory, tried and measured."""
