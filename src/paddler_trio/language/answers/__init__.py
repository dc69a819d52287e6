"""This package finds what a model's answer means: its sections, its reasoning, its calls of tools.

``call_syntax`` and ``model_format`` describe how a model writes, ``families`` and
``format_detection`` find the description for a chat template, ``automaton`` cuts an answer into
sections, the ``read_*`` files read tool calls out of them, and ``whole_answer`` puts an answer
together again.
"""
